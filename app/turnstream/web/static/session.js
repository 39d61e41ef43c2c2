// The client of the page. It asks for a token once, keeps it in this browser, and sends it in a header, never in a URL.
// If people sign in at an issuer, the browser sends the cookie of their session instead.

import { find } from './dom.js'
import { offerSignIn, signedIn } from './sign-in.js'
import { TEXTS } from './texts.js'
import { Client, Refused } from './turnstream.js'

const { page: texts } = TEXTS

// The address of the server, with the prefix under which it may be mounted.
export const BASE = import.meta.url.split('/static/')[0]
const KEY = 'turnstream.token'
const OWNER = 'turnstream.owner' // the owner whose work this tab shows
const LOCAL = 'local' // the owner on a server without tokens: the person of this browser, whatever token comes next
const OTHER_TAB = 'entered in another tab'

const storedToken = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY)

/**
 * Returns the storage in which this browser keeps the work of the token's owner, and the prefix of its keys. It is the
 * storage of the token, so that the work ends with the tab if the token does.
 */
export function shelf() {
  const token = storedToken() ?? (signedIn() ? `session of ${signedIn()}` : '')
  const storage = sessionStorage.getItem(KEY) === null ? localStorage : sessionStorage
  return { storage, prefix: `turnstream.of.${digestOf(`${BASE} ${token}`)}.` }
}

export class Session extends Client {
  constructor() {
    super({ base: BASE, token: storedToken })
    addEventListener('storage', ({ key, newValue }) => key === KEY && newValue && find('#ask-token').close(OTHER_TAB))
  }

  /** @param {Parameters<Client['request']>} call */
  async request(...call) {
    for (;;) {
      const used = storedToken()
      try {
        return await super.request(...call)
      } catch (error) {
        if (!(error instanceof Refused) || error.status !== 401) throw error
        if (storedToken() !== used) continue
        forgetCopies()
        await this.#askForToken(error.message, used)
      }
    }
  }

  /** Opens one dialog, however many requests were refused. */
  #askForToken(reason, used) {
    const before = shelf()
    this.asking ??= new Promise((resolve) => {
      const dialog = find('#ask-token')
      find('#why-token').textContent = used || signedIn() ? reason : texts.token
      offerSignIn(BASE, location.hash, forgetToken)
      dialog.returnValue = ''
      dialog.showModal()
      const close = () => resolve(dialog.returnValue === OTHER_TAB || storeToken(dialog))
      dialog.addEventListener('close', close, { once: true })
    })
      .then(() => this.#handOver(before))
      .finally(() => (this.asking = null))
    return this.asking
  }

  /** Moves the work of an owner to their next token. If somebody else enters a token, the work is not shown to them. */
  async #handOver(before) {
    const me = await super.request('GET', '/api/me').catch(() => null)
    if (me) await this.showsOnly(me.owner, before)
    if (before.prefix !== shelf().prefix) carryOver(before, shelf())
  }

  /** Reloads the page if this tab has shown the work of another owner. That work, on the shelf `left`, is removed. */
  async showsOnly(owner, left = shelf()) {
    const shown = sessionStorage.getItem(OWNER) ?? owner
    const isSame = shown === owner || shown === LOCAL
    if (!isSame) forgetShelf(left)
    sessionStorage.setItem(OWNER, owner)
    if (isSame) return
    location.replace(`${BASE}/`)
    await new Promise(() => {}) // the page is being unloaded
  }
}

/** Removes copies of chats, which must not outlive the token that read them, or a request to erase everything. */
export const forgetCopies = () => dispatchEvent(new CustomEvent('forgetcopies', { detail: shelf().prefix }))

/** Removes the work that a person leaves in this browser, because nobody else may see it. */
export function forgetShelf({ storage, prefix }) {
  for (const key of Object.keys(storage)) if (key.startsWith(prefix)) storage.removeItem(key)
  sessionStorage.removeItem(OWNER)
}

function forgetToken() {
  sessionStorage.removeItem(KEY)
  localStorage.removeItem(KEY)
}

function storeToken(dialog) {
  const { token, remember } = find('form', dialog).elements
  forgetToken()
  const storage = remember.checked ? localStorage : sessionStorage
  storage.setItem(KEY, token.value.trim())
  token.value = ''
}

/**
 * Moves the unsent work of an owner from one shelf to another, because the owner was at work when a new token was
 * needed. The event tells other modules to move what they keep elsewhere.
 */
function carryOver(before, after) {
  for (const key of Object.keys(before.storage).filter((key) => key.startsWith(before.prefix))) {
    const value = before.storage.getItem(key)
    before.storage.removeItem(key)
    after.storage.setItem(after.prefix + key.slice(before.prefix.length), value)
  }
  dispatchEvent(new CustomEvent('carriedover', { detail: [before, after] }))
}

/** Returns a short name for a text that must not itself be part of a key (FNV-1a). */
function digestOf(text) {
  let hash = 0x811c9dc5
  for (let place = 0; place < text.length; place++) hash = Math.imul(hash ^ text.charCodeAt(place), 0x01000193)
  return (hash >>> 0).toString(36)
}
