// For each chat, the text that was typed but not sent.

import { Store } from './store.js'

const MAX_DRAFTS = 50
const NEW = 'new' // the key of a chat that has not begun

export class Drafts {
  store = new Store('draft', MAX_DRAFTS)

  /** @param {string | null} chat */
  get(chat) {
    return this.store.get(chat ?? NEW)?.text ?? ''
  }

  /** @param {string | null} chat @param {string} text */
  put(chat, text) {
    if (text) this.store.put(chat ?? NEW, { text, at: Date.now() })
    else this.store.remove(chat ?? NEW)
  }
}
