// What was typed and not sent, for each chat.

import { Store } from './store.js'

const MAX_DRAFTS = 50 // beyond that the oldest are forgotten
const NEW = 'new' // the chat that has not begun

export class Drafts {
  store = new Store('draft')

  /** @param {string | null} chat */
  get(chat) {
    return this.store.get(chat ?? NEW)?.text ?? ''
  }

  /** @param {string | null} chat @param {string} text */
  put(chat, text) {
    const key = chat ?? NEW
    if (!text) return this.store.remove(key)
    if (!this.store.get(key)) this.#makeRoom()
    this.store.put(key, { text, at: Date.now() })
  }

  #makeRoom() {
    const newestFirst = this.store.entries().sort(([, a], [, b]) => b.at - a.at)
    for (const [key] of newestFirst.slice(MAX_DRAFTS - 1)) this.store.remove(key)
  }
}
