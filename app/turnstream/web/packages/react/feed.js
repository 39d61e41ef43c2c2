// The state of the owner's chats, newest first. The owner's feed keeps the list up to date.

import { hasEnded, isStale } from '@turnstream/client'
import { Store } from './store.js'

/** @import { Chat, Client, FeedEvent } from '@turnstream/client' */

/**
 * @typedef {Chat & {state: 'waiting' | 'running' | null}} ListedChat `state`: whether an answer waits for a person, or runs
 * @typedef {object} FeedState
 * @property {'loading' | 'ready' | 'failed'} status
 * @property {ListedChat[]} chats the newest page of them
 * @property {'open' | 'lost'} connection
 * @property {Error | null} error
 */

/** @extends {Store<FeedState>} */
export class FeedStore extends Store {
  /** @type {string | null} */
  #cursor = null
  /** @type {Map<string, Map<string, 'waiting' | 'running'>>} the answers that have not ended, by chat */
  #open = new Map()

  /** @param {Client} client */
  constructor(client) {
    super({ status: 'loading', chats: [], connection: 'open', error: null })
    this.client = client
  }

  /** @param {AbortSignal} signal */
  async follow(signal) {
    const connection = (/** @type {'open' | 'lost'} */ connection) => signal.aborted || this.change({ connection })
    for (;;) {
      if (this.#cursor === null) await this.#read(signal)
      const fresh = this.#cursor
      try {
        for await (const event of this.client.feed({ cursor: fresh, signal, connection })) {
          if (signal.aborted) return
          if (event.id) this.#cursor = event.id
          if (event.event === 'reset') break
          this.#take(event)
        }
      } catch (error) {
        if (this.#cursor === fresh || !isStale(error)) throw error
      }
      this.#cursor = null
    }
  }

  /** @param {AbortSignal} signal */
  async #read(signal) {
    const { chats, cursor } = await this.read(this.client, '/api/chats', signal)
    this.#cursor = cursor
    this.#open.clear() // the feed begins with all answers that have not ended
    this.change({ status: 'ready', chats: chats.map((/** @type {Chat} */ chat) => this.#listed(chat)) })
  }

  /** @param {FeedEvent} event */
  #take({ event, data }) {
    const others = (/** @type {string} */ id) => this.state.chats.filter((chat) => chat.id !== id)
    if (event === 'chat') {
      const chats = [this.#listed(data), ...others(data.id)]
      this.change({ chats: chats.sort((a, b) => Date.parse(b.updated_at) - Date.parse(a.updated_at)) })
    } else if (event === 'chat_deleted') this.change({ chats: others(data.id) })
    else if (event === 'turn') {
      const turns = this.#open.get(data.chat) ?? new Map()
      this.#open.set(data.chat, turns)
      if (hasEnded(data)) turns.delete(data.turn)
      else turns.set(data.turn, data.waiting ? 'waiting' : 'running')
      this.change({ chats: this.state.chats.map((chat) => (chat.id === data.chat ? this.#listed(chat) : chat)) })
    }
  }

  /** @param {Chat} chat @returns {ListedChat} */
  #listed(chat) {
    const states = [...(this.#open.get(chat.id)?.values() ?? [])]
    return { ...chat, state: states.includes('waiting') ? 'waiting' : (states[0] ?? null) }
  }
}
