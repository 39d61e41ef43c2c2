// A client with the types that openapi-typescript makes of /openapi.json: `node generated.mjs URL` prints what it got.
import createClient from 'openapi-fetch'
import type { components, paths } from './api.js'

type StreamEvent = components['schemas']['StreamEvent']

declare const process: { argv: string[] }
const client = createClient<paths>({ baseUrl: process.argv[2] })

const message = { type: 'text' as const, text: 'tools' }
const posted = await client.POST('/api/turns', { body: { blocks: [message], tools: ['weather', 'explode'] } })
if (!posted.data) throw posted.error
const { chat_id: chat, id: turn } = posted.data.assistant_turn
const place = { params: { path: { chat, turn } } }

const { data: stream = '' } = await client.GET('/api/chats/{chat}/turns/{turn}/stream', { ...place, parseAs: 'text' })
let text = ''
const failed: string[] = []
for (const frame of stream.split('\n\n').filter((frame) => frame.includes('\nevent: '))) {
  const fields = frame.split('\n').map((line) => line.split(/: (.*)/))
  const { id, event, data } = Object.fromEntries(fields)
  const sent = { ...(id && { id }), event, data: JSON.parse(data) } as StreamEvent
  if (sent.event === 'block_delta') text += sent.data.text
  if (sent.event === 'block_stop' && sent.data.is_error) failed.push(String(sent.id))
  if (sent.event === 'turn_error') throw new Error(sent.data.error.message)
}

const read = await client.GET('/api/chats/{chat}/turns/{turn}', place)
const missing = await client.GET('/api/chats/{chat}', { params: { path: { chat: turn } } })
console.log(
  JSON.stringify({
    assembled: text === read.data?.blocks.map((block) => block.text).join(''),
    failed: failed.length,
    last: read.data?.blocks.at(-1)?.text,
    status: read.data?.status,
    refused: missing.error?.status,
  }),
)
