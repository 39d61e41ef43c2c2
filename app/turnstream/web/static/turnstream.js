// A client of turnstream in one file, without dependencies. docs/frontends.md explains it.

/** @import { AnswerOptions, Block, ChatEvent, Decision, Exchange, FeedEvent, FollowOptions } from './protocol.d.ts' */
/** @import { MessageOptions, QueueChange, QueueEntry, ServerEvent, Status, Turn, TurnEvent } from './protocol.d.ts' */

const LAST = new Set(['turn_complete', 'turn_cancelled', 'turn_error'])
const ENDED = new Set(['complete', 'cancelled', 'error'])
const MAX_TRIES = 7
const MAX_TOKENS = 3 // tokens that one request tries: if new tokens are refused, too, it gives up
const MAX_DELAY = 15_000 // milliseconds between two tries
const HEARTBEAT = 15 // seconds between two bytes, if the server names no other time
const MISSED = 3 // missed heartbeats after which a connection counts as dead

/** @param {{status: Status}} turn */
export const hasEnded = (turn) => ENDED.has(turn.status)

/**
 * The blocks, a text that was cut off as one with the text right behind it, which goes on in mid-sentence.
 * @param {Block[]} blocks
 */
export function joined(blocks) {
  /** @type {Block[]} */
  const passages = []
  for (const block of blocks) {
    const last = passages.at(-1)
    if (last?.interrupted && last.type === 'text' && block.type === 'text') {
      const { interrupted, open } = block
      passages[passages.length - 1] = { ...last, text: last.text + block.text, interrupted, open }
    } else passages.push(block)
  }
  return passages
}

/**
 * A request that the server refused: `status`, `message`, in `code` the same for programs, in `errors` the fields that are
 * wrong, in `retryAfter` the seconds after which it may be repeated, where the server names them, and in `requestId` the id
 * by which its log names the request.
 */
export class Refused extends Error {
  /**
   * @param {number} status
   * @param {{title?: string, detail?: string, code?: string, errors?: any[], request_id?: string}} problem
   * @param {number} retryAfter
   */
  constructor(status, problem = {}, retryAfter = 0) {
    super(problem.detail || problem.title || `The server answered ${status}.`)
    this.status = status
    this.code = problem.code ?? null
    this.requestId = problem.request_id ?? null
    this.errors = problem.errors ?? []
    this.retryAfter = retryAfter
  }
}

export class Client {
  /**
   * @param {object} options
   * @param {string} [options.base] address of the server; by default that of the page
   * @param {() => string | null | Promise<string | null>} [options.token] returns the bearer token, or null for none
   * @param {() => unknown} [options.renew] gets a new token for `token` to return, when the server refuses the one it has
   * @param {RequestCredentials} [options.credentials] `include`: cookies are sent to a server of another origin too
   */
  constructor({ base = '', token = () => null, renew, credentials } = {}) {
    this.base = base.replace(/\/+$/, '')
    this.credentials = credentials
    this.token = token
    this.renew = renew
    /** @type {Promise<unknown> | null} */
    this.renewing = null
  }

  /**
   * Returns the JSON of the response, a Blob for another type, null for 204. Throws Refused, and the TypeError of fetch
   * without a connection.
   * @param {string} method @param {string} path @param {any} [body]
   * @param {{key?: string, signal?: AbortSignal}} [options] `key`: an Idempotency-Key
   * @returns {Promise<any>}
   */
  async request(method, path, body, { key, signal } = {}) {
    const raw = typeof body === 'string' || body instanceof Blob
    /** @type {Record<string, string>} */
    const headers = key ? { 'Idempotency-Key': key } : {}
    if (body !== undefined) headers['Content-Type'] = raw ? 'text/plain' : 'application/json'
    const payload = body === undefined || raw ? body : JSON.stringify(body)
    const response = await this.#fetch(path, { method, headers, body: payload, signal })
    if (response.status === 204) return null
    return response.headers.get('Content-Type')?.startsWith('application/json') ? response.json() : response.blob()
  }

  /**
   * `request`, repeated until the server answers. One Idempotency-Key for all tries keeps it from acting twice.
   * @param {string} method @param {string} path @param {any} [body] @param {{signal?: AbortSignal}} [options]
   */
  async insist(method, path, body, { signal } = {}) {
    const key = newKey()
    for (let tries = 1; ; tries++) {
      try {
        return await this.request(method, path, body, { key, signal })
      } catch (error) {
        if (!isPassing(error) || tries === MAX_TRIES) throw error
        await pause(tries - 1, signal, error)
      }
    }
  }

  /**
   * Fetches with the token. If the token is refused and can be renewed, fetches again with a new token. Throws Refused.
   * @param {string} path @param {RequestInit & {headers: Record<string, string>}} options
   */
  async #fetch(path, options) {
    for (let tries = 1; ; tries++) {
      const token = await this.token()
      const headers = { ...(token && { Authorization: `Bearer ${token}` }), ...options.headers }
      const url = this.base + path
      const response = await fetch(url, { credentials: this.credentials, ...options, headers }).catch((error) => {
        if (URL.canParse(url, globalThis.location?.href)) throw error
        throw new Refused(0, {
          detail: `\`base\` must be the address of the server, as https://HOST; it is "${this.base}".`,
        })
      })
      if (response.ok) return response
      if (response.status !== 401 || tries === MAX_TOKENS || !(await this.#renewed(token)))
        throw await refusal(response)
    }
  }

  /**
   * Renews the token, unless it is no longer `used`. All refused requests wait for one renewal. Resolves to success.
   */
  async #renewed(/** @type {string | null} */ used) {
    if (!this.renew) return false
    if ((await this.token()) === used) {
      this.renewing ??= Promise.resolve(this.renew()).finally(() => (this.renewing = null))
      await this.renewing
    }
    return (await this.token()) !== used
  }

  /**
   * Sends `text` to a chat, or with null to a new one. `options`: parent_id, on_busy, model, tools, chat, blocks, …
   * @param {string | null} chat @param {string} text @param {MessageOptions} options
   * @returns {Promise<Exchange>}
   */
  say(chat, text, options = {}) {
    const blocks = [{ type: 'text', text }]
    return this.insist('POST', chat ? `/api/chats/${chat}/turns` : '/api/turns', { blocks, ...options })
  }

  /** Sends `text` into the answer that is running. @param {string} chat @param {string} text */
  steer(chat, text) {
    return this.say(chat, text, { on_busy: 'steer' })
  }

  /**
   * @param {string} chat @param {string} turn @param {AnswerOptions} options
   * @returns {Promise<Exchange>}
   */
  regenerate(chat, turn, options = {}) {
    return this.insist('POST', `${pathOf(chat, turn)}/regenerate`, options)
  }

  /**
   * Copies a turn as a branch beside it, or with `into: 'chat'` the path to it into a new chat. `block`: the last block.
   * @param {string} chat @param {string} turn @param {{into?: 'branch' | 'chat', block?: number, title?: string}} options
   * @returns {Promise<Exchange>}
   */
  fork(chat, turn, options = {}) {
    return this.insist('POST', `${pathOf(chat, turn)}/fork`, options)
  }

  /**
   * Deletes a turn and all that follow it.
   * @param {string} chat @param {string} turn @returns {Promise<{deleted: string, turns: number}>}
   */
  deleteTurn(chat, turn) {
    return this.request('DELETE', pathOf(chat, turn))
  }

  /**
   * The messages of a chat that no model call has received.
   * @param {string} chat @returns {Promise<QueueEntry[]>}
   */
  async queue(chat) {
    return (await this.request('GET', `/api/chats/${chat}/queue`)).entries
  }

  /**
   * Edits (`blocks`), moves (`after`) or converts (`kind`) a message that waits. Throws Refused with the status 409 once it
   * is delivered, or has another version.
   * @param {string} chat @param {string} entry @param {QueueChange} change @returns {Promise<QueueEntry>}
   */
  changeQueued(chat, entry, change) {
    return this.insist('PATCH', `/api/chats/${chat}/queue/${entry}`, change)
  }

  /**
   * Takes a message out of the queue, for good. Throws Refused as `changeQueued` does.
   * @param {string} chat @param {string} entry @param {string} version @returns {Promise<{withdrawn: string}>}
   */
  withdraw(chat, entry, version) {
    return this.insist('DELETE', `/api/chats/${chat}/queue/${entry}?version=${version}`)
  }

  /** @param {string} chat @param {string} turn @returns {Promise<Turn>} */
  cancel(chat, turn) {
    return this.insist('POST', `${pathOf(chat, turn)}/cancel`)
  }

  /**
   * Stops a call that runs in the background. The answer continues with its result.
   * @param {string} chat @param {string} turn @param {string} call @returns {Promise<Turn>}
   */
  cancelCall(chat, turn, call) {
    return this.insist('POST', `${pathOf(chat, turn)}/calls/${encodeURIComponent(call)}/cancel`)
  }

  /**
   * Answers calls that wait: `{type: 'result' | 'approve' | 'deny' | 'answer', tool_use_id, …}`.
   * @param {string} chat @param {string} turn @param {Decision[]} actions @returns {Promise<Turn>}
   */
  act(chat, turn, actions) {
    return this.insist('POST', `${pathOf(chat, turn)}/actions`, { actions })
  }

  /** @param {string} chat @param {string} turn @returns {Promise<Turn>} */
  turn(chat, turn) {
    return this.request('GET', pathOf(chat, turn))
  }

  /**
   * The events of a turn after `cursor`, to its last one. With `caughtUp` each connection has a notice `caught_up` behind
   * what there was, unless the turn ends there.
   * @param {string} chat @param {string} turn @param {FollowOptions} [options]
   * @returns {AsyncGenerator<TurnEvent, void>}
   */
  follow(chat, turn, options) {
    return this.#follow(`${pathOf(chat, turn)}/stream${marked(options)}`, LAST, options)
  }

  /**
   * The events of a chat after `cursor`: its changes, new turns, and the events of all that run. Ends when it is deleted.
   * `caughtUp` as for a turn.
   * @param {string} chat @param {FollowOptions} [options]
   * @returns {AsyncGenerator<ChatEvent, void>}
   */
  followChat(chat, options) {
    return this.#follow(`/api/chats/${chat}/stream${marked(options)}`, new Set(['chat_deleted']), options)
  }

  /**
   * The events of all chats of the owner after `cursor`, without end: chats made, changed, deleted, turns begun, waiting,
   * ended. `cursor` is that of `GET /api/chats`. After `reset` the list of chats must be read again.
   * @param {FollowOptions} [options]
   * @returns {AsyncGenerator<FeedEvent, void>}
   */
  feed(options) {
    return this.#follow('/api/stream', new Set(), options)
  }

  /**
   * What operators watch, without end, for a token with the scope `admin`: `now`, `hour` and `spend`, each whole, and again
   * when it has changed.
   * @param {FollowOptions} [options]
   * @returns {AsyncGenerator<ServerEvent, void>}
   */
  overview(options) {
    return this.#follow('/api/admin/stream', new Set(), options)
  }

  /**
   * Follows one path over as many connections as it takes. Throws Refused.
   * @param {string} path @param {Set<string>} last @param {FollowOptions} [options]
   * @returns {AsyncGenerator<any, void>}
   */
  async *#follow(path, last, { cursor, signal, connection = () => {} } = {}) {
    for (let tries = 0; ; tries++) {
      const start = Date.now()
      let failure
      try {
        for await (const event of this.connect(path, { cursor, signal, connection })) {
          if (event.id) cursor = event.id
          tries = 0
          if (event.data === undefined || event.event === 'access_ended') continue
          yield event
          if (last.has(event.event)) return
        }
      } catch (error) {
        if (error === NO_MORE_EVENTS) return
        if (signal?.aborted || (error instanceof Refused && error.status < 500 && error.status !== 429)) throw error
        failure = error
        connection('lost')
      }
      if (Date.now() - start > MAX_DELAY) tries = 0 // the server ends every connection after a while, even a quiet connection
      await pause(tries, signal, failure)
    }
  }

  /**
   * The events of one connection, to its end.
   * @param {string} path @param {FollowOptions} [options]
   * @returns {AsyncGenerator<ServerEvent, void>}
   */
  async *connect(path, { cursor, signal, connection = () => {} } = {}) {
    const watchdog = new Watchdog(signal)
    try {
      /** @type {Record<string, string>} */
      const headers = cursor ? { 'Last-Event-ID': cursor } : {}
      // Bypasses the cache, in which Firefox lets a request wait up to twenty seconds for another request of the same
      // address.
      const response = await this.#fetch(path, { headers, signal: watchdog.signal, cache: 'no-store' })
      if (response.status === 204) throw NO_MORE_EVENTS
      watchdog.expect(Number(response.headers.get('Turnstream-Heartbeat')) || HEARTBEAT)
      connection('open')
      yield* parseEvents(/** @type {ReadableStream<Uint8Array>} */ (response.body), () => watchdog.reset())
    } finally {
      watchdog.close()
    }
  }
}

/**
 * Applies an event to a turn as `GET …/turns/{turn}` returns it. An unknown event changes nothing. Until the turn is read
 * again, the times of its rounds are those of this clock.
 * @param {Turn} turn @param {TurnEvent} event @param {() => string} now
 */
export function apply(turn, { event, data: { turn: _, ...rest } }, now = () => new Date().toISOString()) {
  const { blocks, rounds } = turn
  const data = /** @type {any} */ (rest)
  if (event === 'turn_start') {
    Object.assign(turn, { status: data.status, attempt: data.attempt, model: data.model })
  } else if (event === 'round_start') {
    turn.status = 'running'
    turn.rounds = [...rounds.filter((round) => round.round !== data.round), { usage: {}, ...data, started_at: now() }]
  } else if (event === 'round_stop') {
    Object.assign(rounds.find((round) => round.round === data.round) ?? {}, data, { sealed_at: now() })
  } else if (event === 'block_start') {
    blocks.push({ ...data, text: '', open: true })
    if (data.type === 'tool_result') {
      turn.actions = turn.actions.filter((one) => one.tool_use_id !== data.tool_use_id)
      turn.jobs = (turn.jobs ?? []).filter((one) => one.tool_use_id !== data.tool_use_id)
    }
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
    turn.jobs = (turn.jobs ?? []).filter((one) => calls.has(one.tool_use_id))
  } else if (event === 'action_required') {
    turn.actions = data.calls
  } else if (event === 'tool_progress' && data.job) {
    turn.jobs = [...new Map([...(turn.jobs ?? []), data.job].map((job) => [job.id, job])).values()]
  } else if (LAST.has(event)) {
    Object.assign(turn, { degraded: [], error: null }, data, {
      status: event.slice(5),
      actions: [],
      jobs: [],
      ended_at: now(),
    })
  }
}

// --- internal parts, exported for their tests ------------------------------------------------------------------------

const NO_MORE_EVENTS = Symbol('204')

/** @param {string} chat @param {string} turn */
const pathOf = (chat, turn) => `/api/chats/${chat}/turns/${turn}`

/** @param {FollowOptions} [options] */
const marked = (options) => (options?.caughtUp ? '?caught_up=true' : '')

/** @param {Response} response */
async function refusal(response) {
  const after = Number(response.headers.get('Retry-After')) || 0
  return new Refused(response.status, await response.json().catch(() => ({})), after)
}

/** A name for a request, by which the server recognises it when it is repeated. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('')
}

/**
 * Parses a body of server-sent events. An event that was cut off at the end is left out.
 * @param {ReadableStream<Uint8Array>} body @param {() => void} onBytes called for each chunk, comments included
 * @returns {AsyncGenerator<ServerEvent, void>}
 */
export async function* parseEvents(body, onBytes = () => {}) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader()
  let rest = ''
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    onBytes()
    const frames = (rest + value).split(/\r?\n\r?\n/)
    rest = frames.pop() ?? ''
    for (const frame of frames) {
      const { id, event = 'message', data } = parseFields(frame)
      if (data !== undefined || id) yield { ...(id && { id }), event, data: data && JSON.parse(data) }
    }
  }
}

/** @param {string} frame */
function parseFields(frame) {
  /** @type {Record<string, string>} */
  const fields = {}
  for (const line of frame.split(/\r?\n/)) {
    const colon = line.indexOf(':')
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, '')
  }
  return fields
}

/** Ends a connection that has gone silent: after a laptop slept, its socket looks open and never yields a byte again. */
class Watchdog {
  #ending = new AbortController()
  #last = Date.now()

  /** @param {AbortSignal} [signal] */
  constructor(signal) {
    this.signal = signal ? AbortSignal.any([signal, this.#ending.signal]) : this.#ending.signal
    this.expect(HEARTBEAT)
  }

  /** @param {number} seconds at most between two bytes of a connection that lives */
  expect(seconds) {
    clearInterval(this.timer)
    const silence = MISSED * seconds * 1000
    this.timer = setInterval(() => this.#check(silence), silence / 9)
    this.reset()
  }

  /** @param {number} silence in milliseconds */
  #check(silence) {
    if (Date.now() - this.#last > silence) this.#ending.abort(new TypeError('The connection has gone silent.'))
  }

  reset() {
    this.#last = Date.now()
  }

  close() {
    clearInterval(this.timer)
    this.#ending.abort()
  }
}

/** Milliseconds before the next try: doubled with each one, with jitter so that clients do not return all at once. */
export function retryDelay(/** @type {number} */ tries, random = Math.random()) {
  return Math.min(MAX_DELAY, 400 * 2 ** tries) * (0.5 + random / 2)
}

const PASSING = new Set([502, 503, 504]) // the server is not ready, or a proxy cannot reach it

/**
 * Whether a request that failed so may succeed later: the server could not be reached, or is not ready.
 * @param {unknown} error
 */
export const isPassing = (error) => (error instanceof Refused ? PASSING.has(error.status) : error instanceof TypeError)

/**
 * Whether a stream failed because its cursor is refused, as after the server went back to a backup: what was read before is
 * to be read anew.
 * @param {unknown} error
 */
export const isStale = (error) => error instanceof Refused && error.status === 400

/**
 * Waits for the retry delay, or for as long as the refusal `error` names; shorter when the network comes back or the page is
 * shown again.
 * @param {number} tries @param {AbortSignal} [signal] @param {any} [error]
 */
export function pause(tries, signal, error) {
  return new Promise((resolve, reject) => {
    const ends = new AbortController()
    /** @param {EventTarget | undefined} target @param {string} name @param {() => void} listener */
    const listen = (target, name, listener) => target?.addEventListener?.(name, listener, { signal: ends.signal })
    /** @param {(value?: any) => void} settle @param {any} [value] */
    const finish = (settle, value) => {
      clearTimeout(timer)
      ends.abort()
      settle(value)
    }
    const after = 1000 * (error?.retryAfter ?? 0)
    const timer = setTimeout(finish, after + retryDelay(after ? 0 : tries), resolve)
    listen(globalThis, 'online', () => finish(resolve))
    listen(globalThis.document, 'visibilitychange', () => finish(resolve))
    listen(signal, 'abort', () => finish(reject, signal?.reason))
    if (signal?.aborted) finish(reject, signal.reason)
  })
}
