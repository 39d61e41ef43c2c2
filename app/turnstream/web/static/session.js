// The client of the page. It asks for a token once, keeps it in this browser, and sends it in a header, never in a URL.
// Where people sign in at an issuer, the browser sends the cookie of their session instead.

import { find } from './dom.js'
import { offerSignIn, signedIn } from './sign-in.js'
import { TEXTS } from './texts.js'
import { Client, Refused } from './turnstream.js'

const { page: texts } = TEXTS

// The address of the server, with the prefix under which it may be mounted.
export const BASE = import.meta.url.split('/static/')[0]
const KEY = 'turnstream.token'
const OWNER = 'turnstream.owner' // whose work this tab shows
const LOCAL = 'local' // the owner of a server without tokens: the person of this browser, with whatever token is next
const OTHER_TAB = 'entered in another tab'

const storedToken = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY)

/**
 * Where this browser keeps what belongs to the owner of the token, and how its keys begin there: it is kept where the token
 * is, so that it ends with the tab if the token does.
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

  /** The work of an owner goes with their next token. It is not shown to somebody else who enters one. */
  async #handOver(before) {
    const me = await super.request('GET', '/api/me').catch(() => null)
    if (me) await this.showsOnly(me.owner, before)
    if (before.prefix !== shelf().prefix) carryOver(before, shelf())
  }

  /** Starts the page anew if this tab has shown the work of another owner, who has left it on the shelf `left`. */
  async showsOnly(owner, left = shelf()) {
    const shown = sessionStorage.getItem(OWNER) ?? owner
    const isSame = shown === owner || shown === LOCAL
    if (!isSame) forgetShelf(left)
    sessionStorage.setItem(OWNER, owner)
    if (isSame) return
    location.replace(`${BASE}/`)
    await new Promise(() => {}) // the page ends
  }
}

/** Copies of chats outlive neither the token with which they were read, nor the request to erase everything. */
export const forgetCopies = () => dispatchEvent(new CustomEvent('forgetcopies', { detail: shelf().prefix }))

/** What a person who signs out leaves in this browser is for nobody else. */
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
 * The token was asked for while its owner was at work: what they have not sent yet goes with them. What is kept elsewhere
 * follows the event.
 */
function carryOver(before, after) {
  for (const key of Object.keys(before.storage).filter((key) => key.startsWith(before.prefix))) {
    const value = before.storage.getItem(key)
    before.storage.removeItem(key)
    after.storage.setItem(after.prefix + key.slice(before.prefix.length), value)
  }
  dispatchEvent(new CustomEvent('carriedover', { detail: [before, after] }))
}

/** A short name for a text that must not be part of a key itself (FNV-1a). */
function digestOf(text) {
  let hash = 0x811c9dc5
  for (let place = 0; place < text.length; place++) hash = Math.imul(hash ^ text.charCodeAt(place), 0x01000193)
  return (hash >>> 0).toString(36)
}
