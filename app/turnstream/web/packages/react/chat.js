// The state of one chat: the path to its newest turn. The stream of the chat keeps the path up to date.

import { apply, hasEnded, isStale } from '@turnstream/client'
import { Store } from './store.js'

/** @import { Chat, ChatEvent, Client, Turn, TurnEvent } from '@turnstream/client' */

/**
 * @typedef {{turns: Turn[], next: string | null, cursor: string}} Page as `GET /api/chats/{chat}/turns` returns it
 * @typedef {object} ChatState
 * @property {'loading' | 'ready' | 'deleted' | 'failed'} status
 * @property {Chat | null} chat
 * @property {Turn[]} turns the path, oldest first
 * @property {string | null} next of the page of older turns; null at the root
 * @property {TurnEvent | null} notice the last notice about an answer, until its next event
 * @property {'open' | 'lost'} connection
 * @property {Error | null} error
 */

const KEPT = 30_000 // milliseconds for which a chat is kept for a suspended component, which may never come back

/** @type {WeakMap<Client, Map<string, ChatStore>>} */
const stores = new WeakMap()

/**
 * The chat of a client, the same for all components. A page of its turns is taken where it was read before, on the server.
 * @param {Client} client @param {string} id @param {Page} [page]
 */
export function chatStore(client, id, page) {
  const known = stores.get(client) ?? new Map()
  stores.set(client, known)
  const store = known.get(id) ?? new ChatStore(client, id, page, known)
  if (!known.has(id)) {
    known.set(id, store)
    const timer = /** @type {any} */ (setTimeout(() => store.following || store.left(), KEPT))
    timer.unref?.() // in Node, where the timer would delay the exit
  }
  return store
}

/** @extends {Store<ChatState>} */
class ChatStore extends Store {
  /** @type {string | null} */
  #cursor
  /** @type {Promise<void> | undefined} */
  #loading
  #path

  /** @param {Client} client @param {string} id @param {Page | undefined} page @param {Map<string, ChatStore>} known */
  constructor(client, id, page, known) {
    const { turns = [], next = null, cursor = null } = page ?? {}
    const status = page ? 'ready' : 'loading'
    super({ status, chat: null, turns, next, notice: null, connection: 'open', error: null })
    this.client = client
    this.id = id
    this.known = known
    this.#path = `/api/chats/${id}`
    this.#cursor = cursor
  }

  left() {
    if (this.known.get(this.id) === this) this.known.delete(this.id)
  }

  /** Resolves when there are turns to show: for a component that is suspended until then. Throws Refused. */
  loaded() {
    return (this.#loading ??= this.#read().then(
      () => this.flush(),
      (error) => {
        this.left() // the next component that asks for the chat reads it again
        throw error
      },
    ))
  }

  /** Reads the page before the oldest turn that is shown. */
  async readOlder() {
    const { turns, next } = await this.client.request('GET', `${this.#path}/turns?leaf=${this.state.next}`)
    this.change({ turns: [...turns, ...this.state.turns], next })
  }

  /** @param {AbortSignal} signal */
  async follow(signal) {
    this.known.set(this.id, this)
    while (this.state.status !== 'deleted') {
      if (this.#cursor === null) await (this.#loading ?? this.#read(signal))
      if (!this.state.chat) this.change({ chat: await this.read(this.client, this.#path, signal) })
      const connection = (/** @type {'open' | 'lost'} */ connection) => signal.aborted || this.change({ connection })
      const fresh = this.#cursor
      try {
        for await (const event of this.client.followChat(this.id, { cursor: fresh, signal, connection })) {
          if (signal.aborted) return
          if (event.id) this.#cursor = event.id
          if (!this.#take(event)) break
        }
      } catch (error) {
        if (this.#cursor === fresh || !isStale(error)) throw error
      }
      this.#cursor = null
      this.#loading = undefined
    }
  }

  /** @param {AbortSignal} [signal] */
  async #read(signal) {
    const { turns, next, cursor } = await this.read(this.client, `${this.#path}/turns`, signal)
    this.#cursor = cursor
    this.change({ status: 'ready', turns, next })
  }

  /** Applies an event. Returns false if the path has changed so that it must be read again. @param {ChatEvent} event */
  #take(event) {
    const { turns } = this.state
    if (event.event === 'chat') this.change({ chat: event.data })
    else if (event.event === 'chat_deleted') this.change({ status: 'deleted', turns: [] })
    else if (event.event === 'turns_deleted') return !turns.some(({ id }) => event.data.turns.includes(id))
    else if (event.event === 'turn') {
      const { turn: id, parent_id, role, created_at, blocks = [] } = event.data
      if (turns.some((turn) => turn.id === id)) return true
      if (parent_id !== (turns.at(-1)?.id ?? null)) return false
      /** @type {Turn['status']} */
      const status = role === 'user' ? 'complete' : 'queued'
      const turn = { ...NEW_TURN, id, chat_id: this.id, parent_id, role, created_at, status, blocks }
      this.change({ turns: [...turns, turn] })
    } else if (event.event !== 'queue') this.#apply(event)
    return true
  }

  /** @param {TurnEvent} event */
  #apply(event) {
    const { turns } = this.state
    const place = turns.findIndex(({ id }) => id === event.data.turn)
    if (place < 0) return
    if (!event.id && event.event !== 'action_required') return this.change({ notice: event })
    const turn = copied(turns[place], event)
    apply(turn, event)
    this.change({ turns: turns.with(place, turn), notice: null })
    if (hasEnded(turn)) this.#complete(turn.id)
  }

  /** Reads the times and the cost of a turn that has ended. @param {string} id */
  async #complete(id) {
    const stored = await this.client.turn(this.id, id).catch(() => null)
    if (stored) this.change({ turns: this.state.turns.map((turn) => (turn.id === id ? stored : turn)) })
  }
}

/** Copies the parts of a turn that the event changes, so that the displayed state stays unchanged. @param {Turn} turn @param {any} event */
function copied({ blocks, rounds, ...turn }, { data: { index } }) {
  const copy = { ...turn, blocks: [...blocks], rounds: rounds.map((round) => ({ ...round })) }
  if (blocks[index]) copy.blocks[index] = { ...blocks[index] }
  return copy
}

const NEW_TURN = {
  model: null,
  attempt: 0,
  stop_reason: null,
  error: null,
  usage: {},
  cost: null,
  started_at: null,
  ended_at: null,
  forked_from: null,
  author: null,
  rounds: [],
  output: null,
  phase: null,
  actions: [],
  preliminary: [],
  labels: {},
  hook_failures: 0,
  degraded: [],
  jobs: [],
  reports: [],
}
