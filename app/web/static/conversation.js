// The open chat: the path that is shown, kept as the stream of the chat tells it. Knows nothing of the page.

import { PAGE_TOOLS } from './asks.js'
import { fileSaid, isFile } from './files.js'
import { apply, hasEnded } from './turnstream.js'

/** @typedef {import('./turnstream.js').Turn & {unheard?: string[]}} Turn */

export class Conversation extends EventTarget {
  /** Fires `path` (other turns are shown), `turn` (one changed), `chat` (it changed, or was begun), `deleted`, `connection`. */
  constructor(client) {
    super()
    this.client = client
    this.close()
  }

  close() {
    this.following?.abort()
    this.visit = Symbol('visit')
    this.id = null
    /** @type {Turn[]} */
    this.path = []
    /** @type {Map<string, Turn>} */
    this.turns = new Map()
    this.through = null
    this.draft = {}
    this.following = null
    this.older = null
    this.#tell('path')
  }

  /** What a chat that has not begun will be. */
  plan(draft) {
    this.draft = draft
    this.#tell('chat')
  }

  get running() {
    return this.path.find((turn) => turn.role === 'assistant' && !hasEnded(turn))
  }

  /** Opens a chat at its newest turn, or at the newest that follows the turn `through`. Throws Refused. */
  async open(id, /** @type {string | null} */ through = null) {
    this.close()
    this.id = id
    await this.#read(through)
  }

  /** Shows the sibling `turn`, down to the newest turn that follows it. */
  choose(turn) {
    return this.#read(turn)
  }

  async readOlder() {
    const { turns, next } = await this.client.request('GET', `/api/chats/${this.id}/turns?leaf=${this.older}`)
    for (const turn of turns) this.turns.set(turn.id, turn)
    this.older = next
    this.#show([...turns, ...this.path])
  }

  /**
   * Says something after what is shown. `onBusy`: what becomes of it while an answer is being written, into which no files
   * can be said; `files` are blocks.
   */
  async say(text, onBusy, files = []) {
    const blocks = said(text, files)
    if (!this.id) return this.#begin(text, blocks)
    const leaf = this.path.at(-1)
    const busy = this.running && { on_busy: files.length && onBusy === 'steer' ? 'enqueue' : onBusy }
    const options = { ...(leaf && { parent_id: leaf.id }), ...busy, blocks }
    const exchange = await this.#here(this.client.say(this.id, text, options))
    if (exchange?.steered) this.#await(this.turns.get(exchange.assistant_turn.id), text)
    else this.#take(exchange)
  }

  /** Says something else in the place of a user turn, with the same files. */
  async edit(turn, text) {
    const blocks = said(text, turn.blocks.filter(isFile).map(fileSaid))
    const options = { parent_id: turn.parent_id, on_busy: 'branch', blocks }
    this.#take(await this.#here(this.client.say(this.id, text, options)))
  }

  async regenerate(turn) {
    this.#take(await this.#here(this.client.regenerate(this.id, turn.id)))
  }

  /** The answer to what was asked; null once another chat is open. */
  async #here(asked) {
    const { visit } = this
    const answer = await asked
    return visit === this.visit ? answer : null
  }

  cancel(turn = this.running) {
    return turn && this.client.cancel(this.id, turn.id)
  }

  async answer(turn, decision) {
    await this.client.act(this.id, turn.id, [decision])
  }

  // --- what the server says ------------------------------------------------------------------------------------------

  async #begin(text, blocks) {
    const exchange = await this.#here(this.#sayFirst(text, blocks, this.draft))
    if (!exchange) return this.#tell('chat')
    this.id = exchange.assistant_turn.chat_id
    this.#take(exchange)
    this.#tell('chat')
    this.#follow()
  }

  async #sayFirst(text, blocks, draft) {
    const tools = [...(await this.client.request('GET', '/api/tools')).tools.map((tool) => tool.name), ...PAGE_TOOLS]
    return this.client.say(null, text, { chat: draft, blocks, ...(!draft.settings?.tools && { tools }) })
  }

  /** Reads a path, and follows the chat from where that was read. */
  async #read(through) {
    const { id } = this
    const reading = Symbol('reading')
    this.reading = reading
    const { turns, next, cursor } = await this.client.request(
      'GET',
      `/api/chats/${id}/turns${through ? `?through=${through}` : ''}`,
    )
    if (this.id !== id) return
    if (this.reading !== reading) return this.reading || this.following ? null : this.#read(null)
    for (const turn of turns) this.turns.set(turn.id, turn)
    Object.assign(this, { through, older: next })
    this.#show(turns)
    this.#follow(cursor)
  }

  async #follow(cursor) {
    this.following?.abort()
    this.cursor = cursor
    this.following = new AbortController()
    const { signal } = this.following
    const connection = (state) => signal.aborted || this.#tell('connection', state)
    try {
      for await (const event of this.client.followChat(this.id, { cursor, signal, connection })) this.#hear(event)
    } catch (error) {
      if (signal.aborted) return
      this.#tell('connection', error.message)
      if (error.status === 401) await this.#followAgain(signal)
    }
  }

  /** Once there is a token that the server takes: asking for anything asks for one. */
  async #followAgain(signal) {
    try {
      await this.client.insist('GET', `/api/chats/${this.id}`)
      if (!signal.aborted) this.#follow(this.cursor)
    } catch (error) {
      this.#tell('connection', error.message)
    }
  }

  #hear(event) {
    const { data, id } = event
    if (id) this.cursor = id
    if (event.event === 'chat') this.#tell('chat', data)
    else if (event.event === 'chat_deleted') this.#tell('deleted')
    else if (event.event === 'turn') this.#add(data)
    else if (this.turns.has(data.turn)) this.#apply(this.turns.get(data.turn), event)
  }

  #apply(turn, event) {
    if (event.id) apply(turn, event)
    if (hasEnded(turn)) this.#complete(turn)
    this.#tell('turn', turn, event)
  }

  /** Its times and its cost, as the server has them. */
  async #complete(turn) {
    const found = await this.client.turn(this.id, turn.id).catch(() => null)
    if (!found) return
    const siblings = found.siblings.length < turn.siblings.length ? turn.siblings : found.siblings
    Object.assign(turn, found, { siblings })
    this.#tell('turn', turn)
  }

  /** What the server answers to who says something is what the stream tells everybody. Whichever comes first. */
  #take(exchange) {
    if (!exchange) return
    const { user_turn: user, assistant_turn: answer } = exchange
    this.through = null
    this.reading = null // what is on its way is old
    for (const turn of [user, answer]) this.#add({ ...turn, turn: turn.id })
    const place = this.path.findIndex((turn) => turn.id === user.parent_id)
    const exchanged = /** @type {Turn[]} */ ([this.turns.get(user.id), this.turns.get(answer.id)])
    if (!this.path.includes(exchanged[1])) this.#show([...this.path.slice(0, place + 1), ...exchanged])
  }

  /** What was said into an answer that has not taken it in yet. */
  #await(turn, text) {
    turn.unheard = [...(turn.unheard ?? []), text]
    this.#tell('turn', turn)
  }

  /** A turn that was made just now. What it says is told from its beginning. */
  #add({ turn: id, parent_id, role, created_at, blocks = [] }) {
    if (this.turns.has(id)) return
    const turn = {
      id,
      chat_id: this.id,
      parent_id,
      role,
      created_at,
      ...BLANK[role](),
      ...(role === 'user' && { blocks }),
    }
    this.turns.set(id, turn)
    this.#addSibling(turn)
    const place = this.path.findIndex((other) => other.id === parent_id)
    const atEnd = place === this.path.length - 1
    if (!this.through || atEnd) this.#lead(turn, place)
    else this.#tell('path')
  }

  /** Shows the new turn: behind what it follows, or with a path of its own that is not known yet. */
  #lead(turn, place) {
    if (turn.parent_id && place < 0) this.#read(null).catch(() => {})
    else this.#show([...this.path.slice(0, place + 1), turn])
  }

  #addSibling(turn) {
    const others = [...this.turns.values()].filter((other) => other.parent_id === turn.parent_id && other !== turn)
    const siblings = [...(others[0]?.siblings ?? []), turn.id]
    for (const one of [...others, turn]) one.siblings = siblings
  }

  #show(path) {
    this.path = path
    this.#tell('path')
  }

  #tell(type, ...detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }))
  }

  /** Calls `listener` with the details of each event of a type. */
  on(type, listener) {
    this.addEventListener(type, (event) => listener(.../** @type {CustomEvent} */ (event).detail))
  }
}

const said = (text, files) => [...files, ...(text ? [{ type: 'text', text }] : [])]

const EMPTY = () => ({ blocks: [], rounds: [], actions: [], degraded: [], usage: {}, error: null, stop_reason: null })
const BLANK = {
  user: () => ({ ...EMPTY(), status: 'complete' }),
  assistant: () => ({ ...EMPTY(), status: 'queued' }),
}
