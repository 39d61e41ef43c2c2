// A page with the workflow transport whose responses are cut. Arguments: the server, the id of the chat, and what to do.
import { WorkflowChatTransport } from '@ai-sdk/workflow/client'
import { readUIMessageStream } from 'ai'

const [server, id, action, words = '', cuts = '0'] = process.argv.slice(2)
const requests = []
const options = { model: 'script', tools: ['weather', 'explode', 'send_mail'] }
let left = Number(cuts)

/** The body ends after some bytes, also inside a chunk, as at the time limit of a function. */
function cut(body) {
  let room = 300 + 211 * (left % 7)
  const short = new TransformStream({
    transform(bytes, controller) {
      controller.enqueue(bytes.subarray(0, room))
      room -= bytes.length
      if (room <= 0) controller.terminate()
    },
  })
  return body.pipeThrough(short)
}

const transport = new WorkflowChatTransport({
  api: `${server}/api/ai-sdk/workflow`,
  prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
    headers: { 'Content-Type': 'application/json' },
    body: { ...body, id, messages, trigger, messageId, turnstream: options },
  }),
  fetch: async (url, init) => {
    const response = await fetch(url, init)
    requests.push(`${init.method ?? 'GET'} ${response.status} ${new URL(url).search}`)
    if (!left || !response.ok) return response
    left--
    return new Response(cut(response.body), response)
  },
})

async function shown(stream, message) {
  for await (const state of readUIMessageStream({ stream, message, terminateOnError: true })) message = state
  return message
}

const send = async (messages, message) =>
  shown(await transport.sendMessages({ chatId: id, messages, trigger: 'submit-message', messageId: message?.id }), message)

const mine = { id: 'm1', role: 'user', parts: [{ type: 'text', text: words }] }
const { more = [], output, files = [], tool } = JSON.parse(process.argv[7] ?? '{}')
if (output) options.output = output
if (tool) options.tools.push({ type: 'client', name: tool, description: 'Where the user is.', input_schema: { type: 'object' } })
mine.parts.unshift(...files)
let message
if (action === 'tail') message = await shown(await transport.reconnectToStream({ chatId: id, startIndex: -4 }))
else message = await send([mine])
if (tool) {
  const part = message.parts.find(({ type }) => type === `tool-${tool}`)
  Object.assign(part, { state: 'output-available', output: { city: 'Bern' } })
  message = await send([mine, message], message)
}
for (const text of more) {
  const next = { id: crypto.randomUUID(), role: 'user', parts: [{ type: 'text', text }] }
  message = await send([mine, message, next])
}
if (action === 'approve') {
  const part = message.parts.find(({ state }) => state === 'approval-requested')
  Object.assign(part, { state: 'approval-responded', approval: { ...part.approval, approved: true } })
  left = Number(cuts)
  message = await send([mine, message], message)
}
console.log(JSON.stringify({ message, requests }))
