// The open chat: its displayed path, which the stream of the chat keeps up to date. This module does not use the page.

import { inputOf, isFile } from './files.js'
import { pathOf } from './kept-files.js'
import { Subscription } from './subscription.js'
import { apply, hasEnded, isPassing, pause } from './turnstream.js'

/** @typedef {import('./protocol.d.ts').Turn & {pendingSteers?: string[]}} Turn */

export class Conversation extends EventTarget {
  /**
   * Fires `path` (other turns are displayed), `turn` (a turn has changed), `chat` (the chat has changed or begun),
   * `deleted`, `connection`, and `queue` (the waiting messages may have changed). `kept` is where this browser keeps
   * the paths that it has displayed.
   */
  constructor(client, kept) {
    super()
    this.client = client
    this.kept = kept
    this.stream = new Subscription(client, {
      open: (options) => client.followChat(this.id, options),
      receive: (event) => this.#receive(event),
      connection: (state) => this.#emit('connection', state),
      failed: (error) => this.#emit('connection', error.message),
      stale: () => this.open(this.id, this.through).catch((error) => this.#emit('connection', error.message)),
    })
    this.close()
  }

  close() {
    this.stream.stop()
    clearTimeout(this.looking)
    this.visit = Symbol('visit')
    this.id = null
    /** @type {Turn[]} */
    this.path = []
    /** @type {Map<string, Turn>} */
    this.turns = new Map()
    this.through = null
    this.draft = {}
    this.older = null
    this.unread = false // true while only a kept path is shown, because the server is away
    this.#emit('connection', 'open') // ends a report about the connection of the previous chat
    this.#emit('path')
    this.#emit('queue')
  }

  /** Calls `listener` with the details of each event of a type. */
  on(type, listener) {
    this.addEventListener(type, (event) => listener(.../** @type {CustomEvent} */ (event).detail))
  }

  /** Sets the system prompt and settings of a chat that has not begun. */
  plan(draft) {
    this.draft = draft
    this.#emit('chat')
  }

  /** The model of the newest displayed answer. It answers next if the chat names no model. */
  get lastModel() {
    return this.path.findLast((turn) => turn.model)?.model
  }

  /** The cost of the displayed turns, as far as their costs are known. */
  get cost() {
    return this.path.reduce((sum, turn) => sum + (turn.cost ?? 0), 0)
  }

  get running() {
    return this.path.findLast((turn) => turn.role === 'assistant' && !hasEnded(turn))
  }

  /**
   * Opens a chat at its newest turn, or at the newest turn that follows the turn `through`. While the server cannot be
   * reached, shows the kept path, and tries again until another chat is opened. Throws Refused.
   */
  async open(id, /** @type {string | null} */ through = null) {
    this.close()
    this.id = id
    const { visit } = this
    for (let tries = 1; visit === this.visit; tries++) {
      try {
        await this.#read(through)
        return this.#emit('connection', 'open')
      } catch (error) {
        if (visit !== this.visit) return
        if (!isPassing(error)) {
          this.kept.remove(pathOf(id)) // deleted, or no longer shared with this person
          throw error
        }
        this.#emit('connection', 'lost')
        if (tries === 1) await this.#showKept()
        await pause(tries)
      }
    }
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
   * The members of a request that sends a message at the end of the displayed path. `onBusy` is the policy for a
   * running answer.
   * @returns {Record<string, any>}
   */
  optionsFor(onBusy) {
    const leaf = this.path.at(-1)
    return {
      on_busy: this.running ? onBusy : 'enqueue',
      ...(leaf && !this.unread && { parent_id: leaf.id }), // the leaf of a kept path may not be the newest turn
      ...(!this.id && { chat: this.draft }),
    }
  }

  /** Shows the turns that a message has created. The message was sent to this chat, or has begun it. */
  take(exchange, text) {
    const begun = !this.id
    this.id = exchange.assistant_turn.chat_id
    if (exchange.steered) return this.#addPendingSteer(this.turns.get(exchange.assistant_turn.id), text)
    this.#addExchange(exchange)
    if (!begun) return
    this.#emit('chat')
    this.stream.start(null)
  }

  /** Sends another text in place of a user turn, with the same files. */
  async edit(turn, text) {
    const files = turn.blocks.filter(isFile).map(inputOf)
    const blocks = [...files, ...(text ? [{ type: 'text', text }] : [])]
    const options = { parent_id: turn.parent_id, on_busy: 'branch', blocks }
    this.#addExchange(await this.#ifStillOpen(this.client.say(this.id, text, options)))
  }

  /** Requests another answer. `options` are members of the request that differ from the request of `turn`. */
  async regenerate(turn, options = {}) {
    this.#addExchange(await this.#ifStillOpen(this.client.regenerate(this.id, turn.id, options)))
  }

  /** Shows the path up to `turn` alone, so that the next message begins a branch there. */
  branchFrom(turn) {
    this.through = null
    this.reading = null // otherwise a path that is being read now would bring the later turns back
    this.#show(this.path.slice(0, this.path.indexOf(turn) + 1))
  }

  /** Copies `turn` up to its block `block`, and shows the copy. */
  async cut(turn, block) {
    this.#addExchange(await this.#ifStillOpen(this.client.fork(this.id, turn.id, { block })))
  }

  /** Copies the path to `turn` into a new chat, and returns its id. */
  async fork(turn) {
    const exchange = await this.client.fork(this.id, turn.id, { into: 'chat' })
    return exchange.assistant_turn.chat_id
  }

  /** Deletes `turn` and all turns that follow it. The stream then names the deleted turns. */
  remove(turn) {
    return this.client.deleteTurn(this.id, turn.id)
  }

  /** Resolves to the response, or to null if another chat is open by then. */
  async #ifStillOpen(request) {
    const { visit } = this
    const response = await request
    return visit === this.visit ? response : null
  }

  cancel(turn = this.running) {
    return turn && this.client.cancel(this.id, turn.id)
  }

  /** Stops a background call, even if its turn has ended. */
  async cancelCall(turn, call) {
    this.#takeReports(turn, await this.client.cancelCall(this.id, turn.id, call))
  }

  async answer(turn, decision) {
    await this.client.act(this.id, turn.id, [decision])
  }

  // --- responses and events ------------------------------------------------------------------------------------------

  /** Reads a path, and follows the chat from its cursor. */
  async #read(through) {
    const { id } = this
    const reading = Symbol('reading')
    this.reading = reading
    const query = through ? `?through=${through}` : ''
    const { turns, next, cursor } = await this.client.request('GET', `/api/chats/${id}/turns${query}`)
    if (this.id !== id) return
    // A later read replaces this read. An exchange that was sent meanwhile makes this path stale: the path is read
    // again, unless the stream of the chat is open and brings the exchange.
    if (this.reading !== reading) return this.reading || this.stream.started ? null : this.#read(null)
    // Keeps only these turns: the stream repeats every later turn from the cursor, and that turn must then count as
    // new.
    this.turns = new Map(turns.map((turn) => [turn.id, turn]))
    Object.assign(this, { through, older: next, unread: false })
    this.#show(turns)
    this.stream.start(cursor)
    this.#keep()
    this.#emit('queue')
  }

  /** Keeps the path in this browser, so that it can be shown while the server is away. */
  #keep() {
    const name = pathOf(this.id)
    this.kept.keep(name, name, new Blob([JSON.stringify(this.path)]))
  }

  async #showKept() {
    const { visit, id } = this
    const [kept] = await this.kept.of(pathOf(id))
    const path = kept ? JSON.parse(await kept.file.text()) : []
    if (visit !== this.visit || this.turns.size) return // the server has answered
    this.unread = true
    this.turns = new Map(path.map((turn) => [turn.id, turn]))
    this.#show(path)
  }

  #receive(event) {
    const { data } = event
    if (CHANGES_QUEUE.has(event.event)) this.#emit('queue')
    if (event.event === 'chat') this.#emit('chat', data)
    else if (event.event === 'chat_deleted') {
      this.kept.remove(pathOf(this.id))
      this.#emit('deleted')
    } else if (event.event === 'turns_deleted') this.#forget(new Set(data.turns))
    else if (event.event === 'turn') this.#add(data)
    else if (this.turns.has(data.turn)) this.#apply(this.turns.get(data.turn), event)
  }

  #apply(turn, event) {
    if (event.id || WITHOUT_ID.has(event.event)) apply(turn, event)
    if (hasEnded(turn) && turn.stop_reason !== 'deleted') this.#complete(turn) // a deleted turn cannot be read
    if (event.event === 'block_stop') this.#noteReport(turn, turn.blocks[event.data.index])
    this.#emit('turn', turn, event)
  }

  /**
   * Reads the reports of a turn again: when one of its calls has started a job, and when a report of the turn has come,
   * perhaps in another turn.
   */
  #noteReport(turn, { type, data, notes }) {
    if (type === 'tool_result' && notes?.job) this.#readReports(turn)
    if (type === 'report') this.#readReports(this.turns.get(data?.turn))
  }

  async #readReports(turn) {
    const { visit } = this
    const stored = turn && (await this.client.turn(this.id, turn.id).catch(() => null))
    if (visit !== this.visit) return
    if (stored) this.#takeReports(turn, stored)
    else this.#lookLater()
  }

  #takeReports(turn, { reports }) {
    turn.reports = reports
    this.#emit('turn', turn)
    this.#lookLater()
  }

  /**
   * Reads open reports again after a while: no event has their progress, or tells that another page has stopped a call.
   */
  #lookLater() {
    clearTimeout(this.looking)
    const open = this.path.filter((turn) => turn.reports?.some(({ delivery }) => !delivery))
    if (open.length) this.looking = setTimeout(() => open.forEach((turn) => this.#readReports(turn)), LOOK)
  }

  /** Reads the times and the cost of a turn that has ended. */
  async #complete(turn) {
    const stored = await this.client.turn(this.id, turn.id).catch(() => null)
    if (!stored) return
    const siblings = stored.siblings.length < turn.siblings.length ? turn.siblings : stored.siblings
    Object.assign(turn, stored, { siblings })
    this.#emit('turn', turn)
    this.#lookLater()
    if (this.turns.get(turn.id) === turn) this.#keep()
  }

  /** Adds the turns of a response. The stream brings the same turns, sometimes before the response. */
  #addExchange(exchange) {
    if (!exchange) return
    const { user_turn: user, assistant_turn: answer } = exchange
    this.through = null
    this.reading = null // a path that is being read now is stale
    for (const turn of [user, answer]) this.#add({ ...turn, turn: turn.id })
    const place = this.path.findIndex((turn) => turn.id === user.parent_id)
    const exchanged = /** @type {Turn[]} */ ([this.turns.get(user.id), this.turns.get(answer.id)])
    if (!this.path.includes(exchanged[1])) this.#show([...this.path.slice(0, place + 1), ...exchanged])
  }

  /** Shows a steer until the running answer has it as a block. */
  #addPendingSteer(turn, text) {
    if (!turn) return // the path is being read, and will have the steer as a block
    const shown = turn.pendingSteers ?? []
    if (!shown.includes(text)) turn.pendingSteers = [...shown, text] // the queue may have brought it
    this.#emit('turn', turn)
    this.#emit('queue')
  }

  /** Shows the waiting steers among the `entries` of the queue, each in the turn for which it waits. */
  showSteers(entries) {
    for (const turn of this.path) {
      const steers = entries.filter((entry) => entry.kind === 'steer' && entry.turn === turn.id)
      const texts = steers.flatMap(({ blocks }) => blocks.map(({ text }) => text))
      if (String(texts) === String(turn.pendingSteers ?? [])) continue
      turn.pendingSteers = texts
      this.#emit('turn', turn)
    }
  }

  /** Adds a new turn. An assistant turn starts empty, because the stream brings all of its events. */
  #add({ turn: id, parent_id, role, created_at, blocks = [] }) {
    if (this.turns.has(id)) return
    const user = role === 'user'
    const turn = { ...EMPTY(), id, chat_id: this.id, parent_id, role, created_at, status: user ? 'complete' : 'queued' }
    if (user) turn.blocks = blocks
    this.turns.set(id, turn)
    this.#addSibling(turn)
    const place = this.path.findIndex((other) => other.id === parent_id)
    const atEnd = place === this.path.length - 1
    if (this.through && !atEnd) this.#emit('path')
    else if (parent_id && place < 0)
      this.#read(null).catch(() => {}) // the turn continues a path that this page has not read
    else this.#show([...this.path.slice(0, place + 1), turn])
  }

  /** Removes deleted turns. If the path has lost its end, reads the path through the last turn that is left. */
  #forget(gone) {
    for (const id of gone) this.turns.delete(id)
    for (const turn of this.turns.values()) turn.siblings = turn.siblings?.filter((id) => !gone.has(id))
    const place = this.path.findIndex((turn) => gone.has(turn.id))
    if (place < 0) return this.#emit('path')
    this.#show(this.path.slice(0, place))
    this.#read(this.path.at(-1)?.id ?? null).catch(() => this.#read(null).catch(() => {}))
  }

  #addSibling(turn) {
    const others = [...this.turns.values()].filter((other) => other.parent_id === turn.parent_id && other !== turn)
    const siblings = [...(others[0]?.siblings ?? []), turn.id]
    for (const one of [...others, turn]) one.siblings = siblings
  }

  #show(path) {
    this.path = path
    this.#emit('path')
    this.#lookLater()
  }

  #emit(type, ...detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }))
  }
}

const LOOK = 5_000 // milliseconds

// Notices that change a turn: a running tool asks a person; a background call reports its progress.
const WITHOUT_ID = new Set(['action_required', 'tool_progress'])

// After these events the queue may have changed: the start of a round delivers the messages that waited for it.
const CHANGES_QUEUE = new Set([
  'queue',
  'turn',
  'turns_deleted',
  'round_start',
  'turn_complete',
  'turn_cancelled',
  'turn_error',
])

/** @returns {any} */
const EMPTY = () => ({
  blocks: [],
  rounds: [],
  actions: [],
  jobs: [],
  reports: [],
  degraded: [],
  usage: {},
  error: null,
  stop_reason: null,
})
