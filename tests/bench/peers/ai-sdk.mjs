// The AI SDK with resumable streams, as its pages "Chatbot Resume Streams" and "resumable-stream" have it, on plain Node.
import { createServer } from 'node:http'
import { createAnthropic } from '@ai-sdk/anthropic'
import { JsonToSseTransformStream, streamText } from 'ai'
import { createClient } from 'redis'
import { createResumableStreamContext } from 'resumable-stream'

const anthropic = createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1`, apiKey: 'bench' })
const publisher = createClient({ url: process.env.REDIS_URL })
const subscriber = createClient({ url: process.env.REDIS_URL })
await Promise.all([publisher.connect(), subscriber.connect()])
const streams = createResumableStreamContext({ waitUntil: () => {}, publisher, subscriber })
const active = new Map() // the id of the stream of a chat

const body = async (request) => {
  const parts = []
  for await (const part of request) parts.push(part)
  return JSON.parse(Buffer.concat(parts).toString())
}

const pass = async (stream, response) => {
  response.writeHead(200, { 'content-type': 'text/event-stream', 'x-vercel-ai-ui-message-stream': 'v1' })
  const reader = stream.getReader()
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    if (!response.destroyed) response.write(value)
  }
  response.end()
}

createServer(async (request, response) => {
  try {
    if (request.url === '/healthz') return response.end('ok')
    if (request.method === 'GET') {
      const id = active.get(request.url.split('/')[2])
      const resumed = id && (await streams.resumeExistingStream(id))
      if (resumed) return await pass(resumed, response)
      response.writeHead(204)
      return response.end()
    }
    const { id, message } = await body(request)
    const stream = crypto.randomUUID()
    active.set(id, stream)
    const result = streamText({ model: anthropic('claude-sonnet-4-6'), prompt: message, maxOutputTokens: 1024 })
    const events = () => result.toUIMessageStream().pipeThrough(new JsonToSseTransformStream())
    await pass(await streams.createNewResumableStream(stream, events), response)
  } catch (error) {
    console.error(error)
    response.destroy()
  }
}).listen(Number(process.env.PORT), '127.0.0.1', 4096)
