// The client of the page. It asks for a token once, keeps it in this browser, and sends it in a header, never in a URL.

import { find } from './dom.js'
import { Client, Refused } from './turnstream.js'

// The address of the server, with the prefix under which it may be mounted.
const BASE = import.meta.url.split('/static/')[0]
const KEY = 'turnstream.token'
const OTHER_TAB = 'entered in another tab'

const storedToken = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY)

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
        if (storedToken() === used) await this.#askForToken(error.message, used)
      }
    }
  }

  /** Opens one dialog, however many requests were refused. */
  #askForToken(reason, used) {
    this.asking ??= new Promise((resolve) => {
      const dialog = find('#ask-token')
      find('#why-token').textContent = used ? reason : 'This server wants to know who you are.'
      dialog.returnValue = ''
      dialog.showModal()
      const close = () => resolve(dialog.returnValue === OTHER_TAB || storeToken(dialog))
      dialog.addEventListener('close', close, { once: true })
    }).finally(() => (this.asking = null))
    return this.asking
  }
}

function storeToken(dialog) {
  const { token, remember } = find('form', dialog).elements
  sessionStorage.removeItem(KEY)
  localStorage.removeItem(KEY)
  const storage = remember.checked ? localStorage : sessionStorage
  storage.setItem(KEY, token.value.trim())
  token.value = ''
}
