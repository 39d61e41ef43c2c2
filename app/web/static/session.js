// The token, where the server wants one: asked for once, kept by this browser, sent in a header and never in a URL.

import { find } from './dom.js'
import { Client, Refused } from './turnstream.js'

const NAME = 'turnstream.token'

const stored = () => sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME)

export class Session extends Client {
  constructor() {
    super({ token: stored })
  }

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
      dialog.showModal()
      dialog.addEventListener('close', () => resolve(keep(dialog)), { once: true })
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
