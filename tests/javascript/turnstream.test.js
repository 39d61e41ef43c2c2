// The client's pure parts and its reconnects, without a browser or a server: `node --test tests/javascript/*.test.js`.

import assert from 'node:assert/strict'
import { afterEach, mock, test } from 'node:test'
import {
  apply,
  Client,
  hasEnded,
  joined,
  parseEvents,
  Refused,
  retryDelay,
} from '../../app/turnstream/web/static/turnstream.js'

const encoder = new TextEncoder()

/** @param {Iterable<Uint8Array>} chunks */
function bodyOf(chunks) {
  return new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk)
      controller.close()
    },
  })
}

/** @param {string} text @param {number} size */
function* chunked(text, size) {
  const bytes = encoder.encode(text)
  for (let start = 0; start < bytes.length; start += size) yield bytes.slice(start, start + size)
}

/** @template Item @param {AsyncIterable<Item>} items */
async function collect(items) {
  const found = []
  for await (const item of items) found.push(item)
  return found
}

// --- server-sent events ----------------------------------------------------------------------------------------------

const FRAMES =
  'id: 1-2-3\nevent: block_delta\ndata: {"text": "tide 🌊 höher"}\n\n: comment\n\nevent: retry\ndata:{}\n\n'
const EVENTS = [
  { id: '1-2-3', event: 'block_delta', data: { text: 'tide 🌊 höher' } },
  { event: 'retry', data: {} },
]

test('events are parsed alike however the bytes are cut', async () => {
  for (let size = 1; size <= encoder.encode(FRAMES).length; size++) {
    assert.deepEqual(await collect(parseEvents(bodyOf(chunked(FRAMES, size)))), EVENTS)
  }
})

test('lines may end with a carriage return', async () => {
  const body = bodyOf([encoder.encode(FRAMES.replaceAll('\n', '\r\n'))])
  assert.deepEqual(await collect(parseEvents(body)), EVENTS)
})

test('an event that was cut off at the end is left out', async () => {
  const body = bodyOf([encoder.encode(`${FRAMES}id: 9-9-9\nevent: block_delta\ndata: {"text": "half"}\n`)])
  assert.deepEqual(await collect(parseEvents(body)), EVENTS)
})

test('each chunk counts as a sign of life, comments too', async () => {
  const onBytes = mock.fn()
  await collect(parseEvents(bodyOf([encoder.encode(': a\n\n'), encoder.encode(': b\n\n')]), onBytes))
  assert.equal(onBytes.mock.callCount(), 2)
})

// --- the turn --------------------------------------------------------------------------------------------------------

/** @returns {import('../../app/turnstream/web/static/protocol.d.ts').Turn} */
function newTurn() {
  return {
    id: 'turn',
    chat_id: 'chat',
    parent_id: null,
    role: 'assistant',
    status: 'queued',
    model: null,
    attempt: 0,
    stop_reason: null,
    error: null,
    usage: {},
    cost: null,
    created_at: '2026-11-22T18:00:00Z',
    started_at: null,
    ended_at: null,
    forked_from: null,
    author: null,
    blocks: [],
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
}

/** @param {ReturnType<typeof newTurn>} turn @param {[any, object][]} events */
function applyAll(turn, events) {
  for (const [event, data] of events) apply(turn, { event, data: { turn: 'turn', ...data } }, () => 'now')
  return turn
}

const CALL = { tool_use_id: 'call', name: 'book', type: 'approval', input: {}, input_digest: 'x', expires_at: null }

/** @type {[string, object][]} */
const FIRST_ROUND = [
  ['turn_start', { chat: 'chat', model: 'model', attempt: 1, status: 'running' }],
  ['round_start', { round: 0, messages: 1, answered: [] }],
  ['block_start', { index: 0, round: 0, type: 'text' }],
  ['block_delta', { index: 0, offset: 0, text: 'Boo' }],
  ['block_delta', { index: 0, offset: 3, text: 'king' }],
  ['block_stop', { index: 0 }],
  ['block_start', { index: 1, round: 0, type: 'tool_use', id: 'call', name: 'book' }],
  ['block_stop', { index: 1, input: {} }],
  ['round_stop', { round: 0, stop_reason: 'tool_use', usage: { output_tokens: 7 } }],
  ['action_required', { round: 0, calls: [CALL] }],
]

test('the events of a turn become the turn', () => {
  const turn = applyAll(newTurn(), FIRST_ROUND)
  assert.deepEqual(turn.actions, [CALL])
  assert.deepEqual(turn.blocks[0], { index: 0, round: 0, type: 'text', text: 'Booking' })
  const result = { index: 2, round: 0, type: 'tool_result', tool_use_id: 'call', name: 'book' }
  applyAll(turn, [['block_start', result]])
  assert.equal(turn.blocks[2].open, true)
  assert.deepEqual(turn.actions, [])
  applyAll(turn, [
    ['block_stop', { index: 2, is_error: false }],
    ['turn_complete', { stop_reason: 'end_turn', usage: { output_tokens: 7 } }],
  ])
  assert.deepEqual(turn.blocks[2], { ...result, text: '', is_error: false })
  assert.deepEqual(turn.rounds, [
    {
      round: 0,
      messages: 1,
      answered: [],
      usage: { output_tokens: 7 },
      stop_reason: 'tool_use',
      started_at: 'now',
      first_delta_at: 'now',
      sealed_at: 'now',
    },
  ])
  assert.equal(turn.status, 'complete')
  assert.ok(hasEnded(turn))
})

test('a reset takes blocks and their calls away, and a round that begins again takes its place', () => {
  const turn = applyAll(newTurn(), [
    ...FIRST_ROUND,
    ['reset', { attempt: 2, index: 1 }],
    ['round_start', { round: 0, messages: 1, answered: [] }],
  ])
  assert.deepEqual([turn.blocks.length, turn.actions, turn.rounds.length], [1, [], 1])
  assert.equal(turn.rounds[0].stop_reason, undefined)
})

test('a turn that failed or was cancelled ends with its error and without open calls', () => {
  const error = { type: 'overloaded', message: 'The model is overloaded.', request_id: null }
  const failed = applyAll(newTurn(), [...FIRST_ROUND, ['turn_error', { stop_reason: null, usage: {}, error }]])
  assert.deepEqual([failed.status, failed.error, failed.actions], ['error', error, []])
  const cancelled = applyAll(newTurn(), [['turn_cancelled', { stop_reason: 'cancelled', usage: {} }]])
  assert.deepEqual([cancelled.status, cancelled.error, hasEnded(cancelled)], ['cancelled', null, true])
})

test('notices and events of a later version change nothing', () => {
  const turn = applyAll(newTurn(), [
    ['status', { stage: 'processing' }],
    ['retry', { error: 'overloaded', seconds: 1 }],
    ['of_a_later_version', { index: 0 }],
  ])
  assert.deepEqual(turn, newTurn())
})

// --- tries and connections -------------------------------------------------------------------------------------------

/** @type {{url: string, headers: any}[]} */
let requests = []

/** Answers the requests in turn: a Response, or an error that fetch throws. @param {(Response | Error)[]} answers */
function answerWith(...answers) {
  requests = []
  mock.method(globalThis, 'fetch', async (/** @type {string} */ url, /** @type {any} */ { headers, signal }) => {
    requests.push({ url, headers })
    const answer = answers.shift()
    assert.ok(answer, 'one request too many')
    signal?.throwIfAborted()
    if (answer instanceof Error) throw answer
    return answer
  })
  // Without the pauses, and without the interval of the watchdog, which would keep the process alive.
  mock.method(
    globalThis,
    'setTimeout',
    (/** @type {Function} */ run, /** @type {number} */ _, /** @type {any[]} */ ...args) =>
      queueMicrotask(() => run(...args)),
  )
}

/** @param {string} text */
const stream = (text) => new Response(text)

afterEach(() => mock.restoreAll())

test('the delay doubles up to fifteen seconds, and two clients differ', () => {
  assert.deepEqual(
    [0, 1, 2, 3].map((tries) => retryDelay(tries, 1)),
    [400, 800, 1600, 3200],
  )
  assert.deepEqual([retryDelay(6, 1), retryDelay(60, 1), retryDelay(60, 0)], [15_000, 15_000, 7_500])
})

test('a stream is continued after the last whole event, until its last one', async () => {
  answerWith(
    stream('id: 1\nevent: block_delta\ndata: {}\n\nid: 2\nevent: block_delta\nda'),
    new TypeError('network'),
    new Response('', { status: 503 }),
    stream('id: 3\nevent: turn_complete\ndata: {}\n\nid: 4\nevent: block_delta\ndata: {}\n\n'),
  )
  /** @type {string[]} */
  const states = []
  const connection = (/** @type {string} */ state) => void states.push(state)
  const events = await collect(new Client({ base: 'http://x' }).follow('c', 't', { cursor: '0', connection }))
  assert.deepEqual(
    events.map((event) => event.id),
    ['1', '3'],
  )
  assert.deepEqual(
    requests.map(({ headers }) => headers['Last-Event-ID']),
    ['0', '1', '1', '1'],
  )
  assert.equal(requests[0].url, 'http://x/api/chats/c/turns/t/stream')
  assert.deepEqual(states, ['open', 'lost', 'lost', 'open'])
})

test('a mark behind what there was is asked for in each connection', async () => {
  const mark = 'event: caught_up\ndata: {}\n\n'
  answerWith(stream(mark), stream(`${mark}id: 3\nevent: turn_complete\ndata: {}\n\n`))
  const events = await collect(new Client().follow('c', 't', { caughtUp: true }))
  assert.deepEqual(
    events.map(({ event }) => event),
    ['caught_up', 'caught_up', 'turn_complete'],
  )
  assert.deepEqual(new Set(requests.map(({ url }) => url)), new Set(['/api/chats/c/turns/t/stream?caught_up=true']))
})

test('a stream without more events ends at the 204', async () => {
  answerWith(new Response(null, { status: 204 }))
  assert.deepEqual(await collect(new Client().follow('c', 't', { cursor: '9' })), [])
})

test('a refusal ends a stream, with the words of the server', async () => {
  answerWith(Response.json({ title: 'Not found', detail: 'There is no such turn.' }, { status: 404 }))
  await assert.rejects(collect(new Client().follow('c', 't')), { status: 404, message: 'There is no such turn.' })
})

test('the feed is continued from an id without an event, across resets', async () => {
  answerWith(
    stream('id: a\n\n'),
    stream('id: b\nevent: reset\ndata: {}\n\nid: c\nevent: chat_deleted\ndata: {"id": "x"}\n\n'),
    new Response('', { status: 401 }),
  )
  const feed = new Client().feed({ cursor: 'list' })
  const event = { event: 'reset', data: {}, id: 'b' }
  assert.deepEqual((await feed.next()).value, event)
  assert.equal((await feed.next()).value?.event, 'chat_deleted')
  await assert.rejects(feed.next(), { status: 401 })
  assert.deepEqual(
    requests.map(({ url, headers }) => [url, headers['Last-Event-ID']]),
    [
      ['/api/stream', 'list'],
      ['/api/stream', 'a'],
      ['/api/stream', 'c'],
    ],
  )
})

test('a stream that is given up sends no further request', async () => {
  answerWith(stream('id: 1\nevent: chat\ndata: {}\n\n'))
  const ending = new AbortController()
  const events = new Client().followChat('c', { signal: ending.signal })
  assert.equal((await events.next()).value?.event, 'chat')
  ending.abort(new Error('enough'))
  await assert.rejects(events.next(), { message: 'enough' })
  assert.equal(requests.length, 1)
})

test('a connection that has gone silent is replaced', async () => {
  mock.timers.enable({ apis: ['setInterval', 'Date'] })
  const silent = new ReadableStream({ start: (controller) => controller.enqueue(encoder.encode(': hello\n\n')) })
  let tries = 0
  mock.method(globalThis, 'fetch', async (/** @type {string} */ _, /** @type {{signal: AbortSignal}} */ { signal }) => {
    if (tries++) return stream('id: 1\nevent: turn_complete\ndata: {}\n\n')
    setImmediate(() => mock.timers.tick(60_000))
    return new Response(silent.pipeThrough(new TransformStream(), { signal }))
  })
  assert.equal((await collect(new Client().follow('c', 't'))).length, 1)
  mock.timers.reset()
})

test('a request is repeated under one key while the server cannot be reached', async () => {
  answerWith(new TypeError('network'), new Response('', { status: 503 }), Response.json({ id: 'turn' }))
  assert.deepEqual(await new Client({ base: 'http://x', token: () => 'secret' }).cancel('c', 't'), { id: 'turn' })
  const [first, second, third] = requests.map(({ headers }) => headers)
  assert.match(first['Idempotency-Key'], /^[0-9a-f]{32}$/)
  assert.equal(first.Authorization, 'Bearer secret')
  assert.deepEqual([second, third], [first, first])
})

test('without an address of a server nothing is tried again', async () => {
  for (const base of [undefined, 'chat.example']) {
    const client = new Client({ base })
    await assert.rejects(client.say(null, 'Hi'), { name: 'Error', status: 0, message: /`base` must be the address/ })
    await assert.rejects(collect(client.follow('chat', 'turn')), { status: 0 })
  }
  assert.equal(new Client({ base: 'https://chat.example/' }).base, 'https://chat.example')
})

test('a request is given up after seven tries, and at once where the server refuses it', async () => {
  answerWith(...Array.from({ length: 7 }, () => new TypeError('network')))
  await assert.rejects(new Client({ base: 'http://x' }).cancel('c', 't'), TypeError)
  answerWith(Response.json({ title: 'Conflict', errors: [{ loc: ['parent_id'] }] }, { status: 409 }))
  await assert.rejects(new Client().say('c', 'Hi'), (error) => {
    assert.ok(error instanceof Refused)
    assert.deepEqual([error.status, error.message, error.errors.length], [409, 'Conflict', 1])
    return true
  })
})

// --- tokens that end -------------------------------------------------------------------------------------------------

test('a stream whose token ends goes on from its cursor with the next one', async () => {
  const refused = () => Response.json({ title: 'Not authorized' }, { status: 401 })
  const word = 'id: 1\nevent: block_delta\ndata: {}\n\n'
  const end = 'event: access_ended\ndata: {"status":401,"detail":"expired"}\n\n'
  answerWith(stream(word + end), refused(), stream('id: 2\nevent: turn_complete\ndata: {}\n\n'))
  let token = 'old'
  const renew = async () => (token = 'new')
  const events = await collect(new Client({ token: async () => token, renew }).follow('c', 't'))
  assert.deepEqual(
    events.map(({ event }) => event),
    ['block_delta', 'turn_complete'],
  )
  const sent = requests.map(({ headers }) => [headers.Authorization, headers['Last-Event-ID']])
  assert.deepEqual(sent, [
    ['Bearer old', undefined],
    ['Bearer old', '1'],
    ['Bearer new', '1'],
  ])
})

test('requests that were refused together wait for one renewal', async () => {
  const refused = () => Response.json({}, { status: 401 })
  answerWith(refused(), refused(), Response.json({ id: 1 }), Response.json({ id: 2 }))
  let token = 'old'
  let renewals = 0
  const renew = async () => {
    renewals++
    token = 'new'
  }
  const client = new Client({ token: () => token, renew })
  await Promise.all([client.turn('c', 't'), client.turn('c', 'u')])
  assert.equal(renewals, 1)
})

test('a refusal stands where no other token comes of it, or none that is accepted', async () => {
  const refused = () => Response.json({ detail: 'Not known.' }, { status: 401 })
  answerWith(refused())
  await assert.rejects(new Client({ token: () => 'old', renew: () => null }).turn('c', 't'), { message: 'Not known.' })
  assert.equal(requests.length, 1)
  answerWith(...Array.from({ length: 3 }, refused))
  let number = 0
  const client = new Client({ token: () => `token ${number}`, renew: () => number++ })
  await assert.rejects(client.turn('c', 't'), { message: 'Not known.' })
  assert.equal(number, 2)
})

// --- texts that were cut off -----------------------------------------------------------------------------------------

test('a text that was cut off is one with the text that goes on with it', () => {
  const text = (/** @type {string} */ words, more = {}) => ({ index: 0, round: 1, type: 'text', text: words, ...more })
  const thought = { ...text('Hm'), type: 'thinking' }
  const cut = { interrupted: true }
  const blocks = [text('Ha', cut), text('lf a ', cut), text('sen', { open: true }), thought, text('A', cut), thought]
  const passages = joined(blocks)
  assert.deepEqual(
    passages.map((block) => block.text),
    ['Half a sen', 'Hm', 'A', 'Hm'],
  )
  assert.equal(passages[0].open, true)
  assert.equal(passages[0].interrupted, undefined)
  assert.equal(blocks[0].text, 'Ha')
})
