// The open chat: the path that is shown, and the turns of it that still run. Knows nothing of the page.

import { PAGE_TOOLS } from './asks.js'
import { apply, hasEnded } from './turnstream.js'

export class Conversation extends EventTarget {
  /** Fires `path` (other turns are shown), `turn` (one changed), `chat` (one was begun), `connection`, `ended`. */
  constructor(client) {
    super()
    this.client = client
    this.close()
  }

  close() {
    this.following?.abort()
    Object.assign(this, { id: null, path: [], through: null, draft: {}, following: null, followed: null, older: null })
    this.#tell('path')
  }

  get running() {
    return this.path.find((turn) => turn.role === 'assistant' && !hasEnded(turn))
  }

  get leaf() {
    return this.path.at(-1)
  }

  /** Opens a chat at its newest turn, or at the newest that follows the turn `through`. Throws Refused. */
  async open(id, through = null) {
    this.close()
    Object.assign(this, { id, through })
    await this.look()
  }

  /** What is new since: turns that were started in another tab, or on another device. */
  async look() {
    if (!this.id) return
    await this.#read(this.through ? `through=${this.through}` : '')
  }

  async readOlder() {
    const { turns, next } = await this.client.request('GET', `/api/chats/${this.id}/turns?leaf=${this.older}`)
    this.older = next
    this.path = [...turns, ...this.path]
    this.#tell('path')
  }

  /** Says something after what is shown. `onBusy`: what becomes of it while an answer is being written. */
  async say(text, onBusy) {
    if (!this.id) return this.#begin(text)
    const place = this.leaf ? { parent_id: this.leaf.id } : {}
    return this.#take(await this.client.say(this.id, text, { ...place, ...(this.running && { on_busy: onBusy }) }))
  }

  /** Says something else in the place of a user turn. */
  async edit(turn, text) {
    this.#take(await this.client.say(this.id, text, { parent_id: turn.parent_id, on_busy: 'branch' }))
    await this.look()
  }

  async regenerate(turn) {
    this.#take(await this.client.regenerate(this.id, turn.id))
    await this.look()
  }

  /** Shows the sibling `id`, down to the newest turn that follows it. */
  async choose(id) {
    this.through = id
    await this.look()
  }

  cancel(turn = this.running) {
    return turn && this.client.cancel(this.id, turn.id)
  }

  async answer(turn, decision) {
    await this.client.act(this.id, turn.id, [decision])
  }

  // --- the parts -----------------------------------------------------------------------------------------------------

  async #begin(text) {
    const tools = [...(await this.client.request('GET', '/api/tools')).tools.map((tool) => tool.name), ...PAGE_TOOLS]
    const options = this.draft.settings?.tools ? {} : { tools }
    const exchange = await this.client.say(null, text, { chat: this.draft, ...options })
    this.id = exchange.assistant_turn.chat_id
    this.#take(exchange)
    this.#tell('chat')
  }

  #take({ user_turn: user, assistant_turn: answer, steered }) {
    if (steered) return
    this.through = null
    this.reading = null // what is on its way is old
    const before = this.path.findIndex((turn) => turn.id === user.parent_id)
    const known = this.path.find((turn) => turn.id === user.id)
    this.path = [...this.path.slice(0, before + 1), known ?? user, answer]
    this.#follow()
    this.#tell('path')
  }

  async #read(query) {
    const { id } = this
    const reading = (this.reading = Symbol(query))
    const { turns, next } = await this.client.request('GET', `/api/chats/${id}/turns?${query}`)
    if (this.id !== id || this.reading !== reading) return
    const known = new Map(this.path.map((turn) => [turn.id, turn]))
    const earlier = this.#earlier(turns)
    this.older = earlier.length ? this.older : next
    this.path = [...earlier, ...turns.map((turn) => this.#merged(known.get(turn.id), turn))]
    this.#follow()
    this.#tell('path')
  }

  /** The server's picture of a turn, but for the one that is followed: that one knows more already. */
  #merged(known, turn) {
    if (!known) return turn
    return Object.assign(known, known === this.followed ? { siblings: turn.siblings } : turn)
  }

  /** Turns before the first of a page, where they are known already. */
  #earlier([first]) {
    return first ? this.path.slice(0, this.path.findIndex((turn) => turn.id === first.parent_id) + 1) : []
  }

  /** Follows one turn after the other: what stands behind one that runs has nothing to say yet. */
  async #follow() {
    const turn = this.running
    if (this.followed === turn) return
    this.following?.abort()
    this.followed = turn
    if (!turn) return
    const following = (this.following = new AbortController())
    try {
      await this.#followOne(turn, following.signal)
    } catch (error) {
      if (following.signal.aborted) return
      this.followed = null
      return this.#tell('connection', error.message)
    }
    if (following.signal.aborted) return
    this.followed = null
    this.#tell('ended', turn)
    this.#follow()
  }

  async #followOne(turn, signal) {
    const connection = (state) => this.#tell('connection', state)
    for await (const event of this.client.follow(this.id, turn.id, { cursor: turn.cursor, signal, connection })) {
      if (event.id) apply(turn, event)
      this.#tell('turn', turn, event)
    }
    Object.assign(turn, await this.client.turn(this.id, turn.id)) // its times, as the server has them
    this.#tell('turn', turn)
  }

  #tell(type, ...detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }))
  }
}
