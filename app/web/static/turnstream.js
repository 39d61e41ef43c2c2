// A client of turnstream in one file, without dependencies. docs/frontends.md explains it.

const LAST = new Set(['turn_complete', 'turn_cancelled', 'turn_error'])
const ENDED = new Set(['complete', 'cancelled', 'error'])
const LONGEST_PAUSE = 15_000 // milliseconds between two tries
const SILENCE = 45_000 // the server says something every 15 s; after three times that the connection is dead

export const hasEnded = (turn) => ENDED.has(turn.status)

/** The server refused: `status`, `message`, and in `errors` what is wrong with which field. */
export class Refused extends Error {
  constructor(status, problem = {}) {
    super(problem.detail || problem.title || `The server answered ${status}.`)
    this.status = status
    this.errors = problem.errors ?? []
  }
}

export class Client {
  /** `base` is where the server is; `token` a function that gives the bearer token, or null for none. */
  constructor({ base = '', token = () => null } = {}) {
    this.base = base
    this.token = token
  }

  /**
   * The JSON of the answer, its bytes where it is none, null where there are none. Throws Refused, and what fetch throws
   * without a connection.
   */
  async request(method, path, body, { key, signal } = {}) {
    const headers = this.headers(key && { 'Idempotency-Key': key })
    const text = typeof body === 'string' || body instanceof Blob
    if (body !== undefined) headers['Content-Type'] = text ? 'text/plain' : 'application/json'
    const sent = body === undefined || text ? body : JSON.stringify(body)
    const answer = await fetch(this.base + path, { method, headers, body: sent, signal })
    if (!answer.ok) throw await refusal(answer)
    if (answer.status === 204) return null
    return answer.headers.get('Content-Type')?.startsWith('application/json') ? answer.json() : answer.blob()
  }

  /** The same, made again until the server answers. The key keeps it from doing twice what is asked once. */
  async insist(method, path, body, { signal } = {}) {
    const key = newKey()
    for (let tries = 0; ; tries++) {
      try {
        return await this.request(method, path, body, { key, signal })
      } catch (error) {
        const passing = error instanceof Refused ? error.status === 503 : error instanceof TypeError
        if (!passing || tries === 6) throw error
      }
      await pause(tries, signal)
    }
  }

  headers(more) {
    const token = this.token()
    return { ...(token && { Authorization: `Bearer ${token}` }), ...more }
  }

  /** Says `text` in a chat, or with null in a new one. `options`: parent_id, on_busy, model, tools, chat, blocks, … */
  say(chat, text, options = {}) {
    const blocks = [{ type: 'text', text }]
    return this.insist('POST', chat ? `/api/chats/${chat}/turns` : '/api/turns', { blocks, ...options })
  }

  /** Says `text` into the answer that is being written. */
  steer(chat, text) {
    return this.say(chat, text, { on_busy: 'steer' })
  }

  regenerate(chat, turn, options = {}) {
    return this.insist('POST', `${at(chat, turn)}/regenerate`, options)
  }

  cancel(chat, turn) {
    return this.insist('POST', `${at(chat, turn)}/cancel`)
  }

  /** Answers calls that wait: `{type: 'result' | 'approve' | 'deny', tool_use_id, …}`. */
  act(chat, turn, actions) {
    return this.insist('POST', `${at(chat, turn)}/actions`, { actions })
  }

  turn(chat, turn) {
    return this.request('GET', at(chat, turn))
  }

  /** The events of a turn after `cursor`, to its last one: `{id, event, data}`, where a notice has no id. */
  follow(chat, turn, options) {
    return this.#follow(`${at(chat, turn)}/stream`, LAST, options)
  }

  /** The events of a chat after `cursor`, for ever: its changes, new turns, and the events of all that run. */
  followChat(chat, options) {
    return this.#follow(`/api/chats/${chat}/stream`, new Set(['chat_deleted']), options)
  }

  /** Over as many connections as it takes. `connection` is told 'open' and 'lost'. Throws Refused. */
  async *#follow(path, last, { cursor, signal, connection = () => {} } = {}) {
    for (let tries = 0; ; tries++) {
      try {
        for await (const event of this.connect(path, { cursor, signal, connection })) {
          if (event.id) cursor = event.id
          tries = 0
          yield event
          if (last.has(event.event)) return
        }
        tries = 0 // it ended well: connections do, after a while
      } catch (error) {
        if (error === NOTHING_LEFT) return
        if (signal?.aborted || (error instanceof Refused && error.status < 500)) throw error
        connection('lost')
      }
      await pause(tries, signal)
    }
  }

  /** The events of one connection, to its end. */
  async *connect(path, { cursor, signal, connection = () => {} } = {}) {
    const watch = new Watch(signal)
    try {
      const headers = this.headers(cursor && { 'Last-Event-ID': cursor })
      const answer = await fetch(this.base + path, { headers, signal: watch.signal })
      if (answer.status === 204) throw NOTHING_LEFT
      if (!answer.ok) throw await refusal(answer)
      connection('open')
      yield* parse(answer.body, () => watch.heard())
    } finally {
      watch.close()
    }
  }
}

/**
 * Takes an event into a turn as `GET …/turns/{turn}` gives it. What it does not know changes nothing. The times of rounds
 * are those of this clock, until the turn is read again.
 */
export function apply(turn, { event, data: { turn: _, ...data } }, now = () => new Date().toISOString()) {
  const { blocks, rounds } = turn
  if (event === 'turn_start') {
    Object.assign(turn, { status: data.status, attempt: data.attempt, model: data.model })
  } else if (event === 'round_start') {
    turn.status = 'running'
    turn.rounds = [...rounds.filter((round) => round.round !== data.round), { usage: {}, ...data, started_at: now() }]
  } else if (event === 'round_stop') {
    Object.assign(rounds.find((round) => round.round === data.round) ?? {}, data, { sealed_at: now() })
  } else if (event === 'block_start') {
    blocks.push({ ...data, text: '', open: true })
    if (data.type === 'tool_result') turn.actions = turn.actions.filter((one) => one.tool_use_id !== data.tool_use_id)
    const round = rounds.find((round) => round.round === data.round)
    if (round) round.first_delta_at ??= now()
  } else if (event === 'block_delta') {
    blocks[data.index].text += data.text
  } else if (event === 'block_stop') {
    delete blocks[data.index].open
    Object.assign(blocks[data.index], data)
  } else if (event === 'reset') {
    blocks.length = Math.min(blocks.length, data.index)
    const calls = new Set(blocks.map((block) => block.id))
    turn.actions = turn.actions.filter((one) => calls.has(one.tool_use_id))
  } else if (event === 'action_required') {
    turn.actions = data.calls
  } else if (LAST.has(event)) {
    Object.assign(turn, { degraded: [], error: null }, data, { status: event.slice(5), actions: [], ended_at: now() })
  }
}

// --- the parts -------------------------------------------------------------------------------------------------------

const NOTHING_LEFT = Symbol('204')

const at = (chat, turn) => `/api/chats/${chat}/turns/${turn}`

async function refusal(answer) {
  return new Refused(answer.status, await answer.json().catch(() => ({})))
}

function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('')
}

/** The events in a body of server-sent events. An event that was cut off is none. */
async function* parse(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    heard()
    const frames = (rest + value).split(/\r?\n\r?\n/)
    rest = frames.pop()
    for (const frame of frames) {
      const event = fields(frame)
      if (event.data !== undefined) yield { ...event, data: JSON.parse(event.data) }
    }
  }
}

function fields(frame) {
  const found = {}
  for (const line of frame.split(/\r?\n/)) {
    const colon = line.indexOf(':')
    if (colon > 0) found[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, '')
  }
  return found
}

/** Ends a connection that has gone silent, as they do when a laptop sleeps. */
class Watch {
  #ending = new AbortController()
  #last = Date.now()

  constructor(signal) {
    this.signal = signal ? AbortSignal.any([signal, this.#ending.signal]) : this.#ending.signal
    this.look = () => Date.now() - this.#last > SILENCE && this.#ending.abort(new TypeError('silence'))
    this.timer = setInterval(this.look, 5_000)
  }

  heard() {
    this.#last = Date.now()
  }

  close() {
    clearInterval(this.timer)
    this.#ending.abort()
  }
}

/** Longer with every try, never the same for two clients, and cut short when the network is back or the page is seen. */
function pause(tries, signal) {
  const wait = Math.min(LONGEST_PAUSE, 400 * 2 ** tries) * (0.5 + Math.random() / 2)
  return new Promise((resolve, reject) => {
    const ends = new AbortController()
    const listen = (target, name, react) => target?.addEventListener?.(name, react, { signal: ends.signal })
    const finish = (settle, value) => {
      clearTimeout(timer)
      ends.abort()
      settle(value)
    }
    const timer = setTimeout(finish, wait, resolve)
    listen(globalThis, 'online', () => finish(resolve))
    listen(globalThis.document, 'visibilitychange', () => finish(resolve))
    listen(signal, 'abort', () => finish(reject, signal.reason))
    if (signal?.aborted) finish(reject, signal.reason)
  })
}
