// The hooks of @turnstream/react against the server: `node react.mjs FOLDER URL SCENE`. FOLDER has the packages.
import { createRequire } from 'node:module'
import { StrictMode, Suspense, createElement as h } from 'react'
import { renderToString } from 'react-dom/server'
import { create } from 'react-test-renderer'

const [folder, base, scene] = process.argv.slice(2)
const { resolve } = createRequire(`${folder}/`)
const { Client } = await import(resolve('@turnstream/client'))
const { useChat, useFeed } = await import(resolve('@turnstream/react'))

console.error = () => {} // React says that its test renderer is old
const client = new Client({ base })
const tools = ['weather', 'explode', 'send_mail']
const requests = []
const { fetch } = globalThis
globalThis.fetch = (url, options) => {
  requests.push(String(url).slice(base.length))
  if (!url.endsWith('/stream')) return fetch(url, options)
  const answer = refuse
  refuse = false
  if (answer) return Response.json({ detail: 'No cursor of this chat.' }, { status: 400 })
  const ending = new AbortController()
  cut = () => ending.abort(new TypeError('cut'))
  return fetch(url, { ...options, signal: AbortSignal.any([options.signal, ending.signal]) })
}
let cut // ends the stream that was opened last
let refuse = false // the next one

let shown
const seen = []
function Chat({ id, ...options }) {
  shown = useChat(client, id, options)
  seen.push(shown)
  return shown.status
}

async function until(condition) {
  while (!condition()) await new Promise((done) => setTimeout(done, 5))
}
const ended = () => shown.turns.length > 0 && !shown.running
const textOf = (turn) => turn.blocks.map((block) => block.text).join('')
const lengths = () => seen.map((state) => state.turns.map(textOf).join('').length)

const scenes = {
  /** A chat from its first message on, in StrictMode. */
  async chat() {
    const root = create(h(StrictMode, null, h(Chat, { id: null })))
    await until(() => shown)
    const empty = shown.status
    await shown.send('tools', { tools })
    await until(ended)
    const before = lengths()
    const first = shown.turns[1].id
    const kinds = shown.turns[1].blocks.map(({ type }) => type)
    const streams = requests.filter((path) => path.endsWith('/stream')).length
    const titled = shown.chat?.title
    await shown.regenerate(shown.turns[1], { tools })
    await until(() => shown.turns[1]?.id !== first && ended())
    await shown.edit(shown.turns[0], 'plain')
    await until(() => shown.turns[0] && textOf(shown.turns[0]) === 'plain' && shown.turns.length === 2 && ended())
    const parts = (turns) => JSON.stringify(turns.map(({ id, status, blocks }) => [id, status, blocks]))
    const same = parts(shown.turns) === parts((await client.request('GET', `/api/chats/${shown.id}/turns`)).turns)
    const after = lengths()
    const kept = before.every((length, place) => length === after[place]) // of what was shown before
    root.unmount()
    return { empty, kinds, streams, titled, kept, same, turns: shown.turns.length, last: textOf(shown.turns[1]) }
  },

  /** An approval, a stop, and a chat that is deleted. */
  async decisions() {
    create(h(Chat, { id: null }))
    await until(() => shown)
    await shown.send('mail', { tools })
    await until(() => shown.running?.actions.length)
    const [{ tool_use_id, input_digest }] = shown.running.actions
    await shown.act(shown.running, [{ type: 'approve', tool_use_id, input_digest }])
    await until(ended)
    await shown.send('hang')
    await until(() => shown.running && textOf(shown.running).includes('That'))
    await shown.stop()
    await until(ended)
    const statuses = shown.turns.map((turn) => turn.status)
    await client.request('DELETE', `/api/chats/${shown.id}`)
    await until(() => shown.status === 'deleted')
    return { statuses, turns: shown.turns.length }
  },

  /** A tool of the page, an output with a schema, a file, and the error of a turn. */
  async options() {
    create(h(Chat, { id: null }))
    await until(() => shown)
    const locate = {
      type: 'client',
      name: 'getLocation',
      description: 'Where the user is.',
      input_schema: { type: 'object' },
    }
    await shown.send('where', { tools: ['weather', locate] })
    await until(() => shown.running?.actions.length)
    const [{ tool_use_id }] = shown.running.actions
    await shown.act(shown.running, [{ type: 'result', tool_use_id, output: { city: 'Bern' } }])
    await until(ended)
    const results = shown.turns[1].blocks.filter(({ type }) => type === 'tool_result').map(({ text }) => text)
    const properties = { sea: { type: 'string' } }
    const schema = { type: 'object', properties, required: ['sea'], additionalProperties: false }
    await shown.send('structured', { output: { schema } })
    await until(() => shown.turns.length === 4 && ended())
    await until(() => shown.turns[3].output) // which is read when the turn has ended
    const { output } = shown.turns[3]
    const { id } = await client.request('POST', '/api/uploads', new Blob(['Salt.'], { type: 'text/plain' }))
    const blocks = [
      { type: 'document', source: { type: 'upload', id } },
      { type: 'text', text: 'recall' },
    ]
    await shown.send('', { blocks })
    await until(() => shown.turns.length === 6 && ended())
    const recalled = textOf(shown.turns[5])
    await shown.send('fail')
    await until(() => shown.turns.length === 8 && ended())
    return { results, output, file: recalled.includes('document '), error: shown.turns[7].error.message }
  },

  /** Suspended until the turns are there; nothing is shown before them. */
  async suspense() {
    const { assistant_turn: turn } = await client.say(null, 'plain')
    const root = create(h(Suspense, { fallback: 'waits' }, h(Chat, { id: turn.chat_id, suspense: true })))
    await until(() => root.toJSON() === 'ready')
    await until(ended)
    const reads = requests.filter((path) => path.endsWith('/turns') && path.includes(turn.chat_id)).length
    root.unmount()
    return { loading: seen.some((state) => state.status === 'loading' || !state.turns.length), reads }
  },

  /** Rendered on a server: with a page that was read before, and without one. */
  async server() {
    const { assistant_turn: turn } = await client.say(null, 'plain')
    for await (const _event of client.follow(turn.chat_id, turn.id));
    const page = await client.request('GET', `/api/chats/${turn.chat_id}/turns`)
    requests.length = 0
    const Words = (options) => useChat(client, turn.chat_id, options).turns.map(textOf).join(' ')
    const without = renderToString(h(Chat, { id: crypto.randomUUID() }))
    return { words: renderToString(h(Words, { page })), without, requests: requests.length }
  },

  /** The chats of the owner. */
  async feed() {
    let feed
    const Feed = () => {
      feed = useFeed(client)
      return null
    }
    const root = create(h(StrictMode, null, h(Feed)))
    await until(() => feed?.status === 'ready')
    const { assistant_turn: turn } = await client.say(null, 'hang')
    const chat = () => feed.chats.find(({ id }) => id === turn.chat_id)
    await until(() => chat()?.state === 'running')
    const first = feed.chats[0].id === turn.chat_id
    await client.cancel(turn.chat_id, turn.id)
    await until(() => chat().state === null)
    await client.request('DELETE', `/api/chats/${turn.chat_id}`)
    await until(() => !chat())
    root.unmount()
    return { first, streams: requests.filter((path) => path === '/api/stream').length }
  },

  /** A stream whose cursor is refused when it comes back. */
  async anew() {
    create(h(Chat, { id: null }))
    await until(() => shown)
    await shown.send('plain')
    await until(() => cut && ended())
    await shown.send('plain')
    await until(() => shown.turns.length === 4 && ended())
    refuse = true
    cut()
    await client.say(shown.id, 'plain')
    await until(() => shown.turns.length === 6 && ended())
    return { status: shown.status, refuse, last: textOf(shown.turns[5]) }
  },

  /** What cannot be read. */
  async refused() {
    create(h(Chat, { id: crypto.randomUUID() }))
    await until(() => shown?.status === 'failed')
    return { status: shown.error.status }
  },
}

console.log(JSON.stringify(await scenes[scene]()))
process.exit()
