// The token, where the server wants one: asked for once, kept by this browser, sent in a header and never in a URL.

import { find } from './dom.js'
import { SharedLine } from './shared.js'
import { Client, Refused } from './turnstream.js'

const NAME = 'turnstream.token'
const ELSEWHERE = 'given in another tab'
const CHAT = /^\/api\/chats\/([^/]+)\/stream$/

const stored = () => sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME)

export class Session extends Client {
  constructor() {
    super({ token: stored })
    this.shared = SharedLine.open()
    addEventListener('storage', ({ key, newValue }) => key === NAME && newValue && find('#ask-token').close(ELSEWHERE))
  }

  /** Chats are followed on the connection that all tabs share. */
  async *connect(path, options) {
    const [, chat] = CHAT.exec(path) ?? []
    if (!chat || !this.shared || this.shared.broken) yield* super.connect(path, options)
    else yield* this.shared.follow(chat, this.token(), options)
  }

  /** @param {Parameters<Client['request']>} call */
  async request(...call) {
    for (;;) {
      const used = stored()
      try {
        return await super.request(...call)
      } catch (error) {
        if (!(error instanceof Refused) || error.status !== 401) throw error
        if (stored() === used) await this.#ask(error.message, used)
      }
    }
  }

  /** One question, however many requests were refused. */
  #ask(why, used) {
    this.asking ??= new Promise((resolve) => {
      const dialog = find('#ask-token')
      find('#why-token').textContent = used ? why : 'This server wants to know who you are.'
      dialog.returnValue = ''
      dialog.showModal()
      dialog.addEventListener('close', () => resolve(dialog.returnValue === ELSEWHERE || keep(dialog)), { once: true })
    }).finally(() => (this.asking = null))
    return this.asking
  }
}

function keep(dialog) {
  const { token, remember } = find('form', dialog).elements
  sessionStorage.removeItem(NAME)
  localStorage.removeItem(NAME)
  const place = remember.checked ? localStorage : sessionStorage
  place.setItem(NAME, token.value.trim())
  token.value = ''
}
