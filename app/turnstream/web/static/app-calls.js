// The tool calls that an app makes. Each call is a turn in a chat of the app, and is shown beneath the app.

import { askForm } from './asks.js'
import { Blocks } from './blocks.js'
import { h } from './dom.js'
import { apply, hasEnded } from './turnstream.js'

/** The calls that one app makes: the app that belongs to the result of `call` in `turn`. */
export class AppCalls {
  constructor(client, turn, call, tools) {
    this.client = client
    this.origin = { chat: turn.chat_id, turn: turn.id, app: call }
    this.tools = tools
    this.element = h('div', { class: 'app-calls' })
    this.calls = new Map()
    this.ending = new AbortController()
  }

  /** Shows the calls that the app made during earlier visits. */
  async begin() {
    const { turn, app } = this.origin
    const { calls } = await this.client.request('GET', `/api/mcp/apps/calls?turn=${turn}`)
    const made = calls.find((one) => one.app === app)
    if (made) this.#follow(made.chat)
  }

  /** Makes a call. Resolves to its result block, or to null if the turn ends without a result. Throws Refused. */
  async make(name, args) {
    const body = { ...this.origin, name, arguments: args }
    const { chat, turn } = await this.client.insist('POST', '/api/mcp/apps/calls', body, { signal: this.ending.signal })
    this.#follow(chat)
    return this.#call(turn, chat).result
  }

  remove() {
    this.ending.abort()
    for (const { blocks } of this.calls.values()) blocks.remove()
  }

  /** Follows all calls of the app on one stream, because browsers open few connections to a server. */
  async #follow(chat) {
    if (this.chat) return
    this.chat = chat
    try {
      for await (const event of this.client.followChat(chat, { signal: this.ending.signal })) this.#receive(event)
    } catch (error) {
      if (error.name !== 'AbortError') console.warn(error)
    } finally {
      for (const { settle } of this.calls.values()) settle(null) // the chat was deleted, or the page no longer shows it
    }
  }

  #receive(event) {
    const { turn: id, role } = event.data
    if (event.event === 'turn' && role === 'assistant') this.#call(id, this.chat)
    const call = this.calls.get(id)
    if (!call || event.event === 'turn') return
    const { turn, blocks, element, settle } = call
    if (event.event === 'tool_progress' && event.data.message) blocks.setProgress(event.data)
    apply(turn, event)
    blocks.update(turn, !hasEnded(turn))
    // A copy of the surrounding turn can end at its own blocks only; these blocks do not belong to that turn.
    for (const block of element.querySelectorAll('[data-block]')) delete block.dataset.block
    if (ENDS.has(event.event)) settle(turn.blocks.find((block) => block.type === 'tool_result') ?? null)
  }

  /** Returns the call of a turn. The stream or the response creates it, whichever comes first. */
  #call(id, chat) {
    const known = this.calls.get(id)
    if (known) return known
    const turn = { id, chat_id: chat, role: 'assistant', status: 'queued', ...EMPTY() }
    const element = h('div')
    const blocks = new Blocks(element, {
      ask: (action, text) => askForm(action, text, (decision) => this.#answer(turn, decision)),
      wholeResult: (one) => this.tools.wholeResult(turn, one),
      readUpload: this.tools.readUpload,
      stop: (one) => this.client.cancelCall(chat, id, one),
    })
    let settle
    const result = new Promise((resolve) => (settle = resolve))
    this.element.append(element)
    this.calls.set(id, { turn, blocks, element, result, settle })
    return this.calls.get(id)
  }

  async #answer(turn, decision) {
    try {
      await this.client.act(turn.chat_id, turn.id, [decision])
    } catch (error) {
      return error.status === 409 ? null : error.message
    }
  }
}

// Only these events end a turn: `turn_start` may also name the status of a turn that has ended.
const ENDS = new Set(['turn_complete', 'turn_cancelled', 'turn_error'])

const EMPTY = () => ({
  blocks: [],
  rounds: [],
  actions: [],
  jobs: [],
  reports: [],
  degraded: [],
  usage: {},
  error: null,
})
