// The AI SDK's provider for OpenAI: `node ai-openai.mjs SCENE URL` prints what it got as JSON.
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, isStepCount, Output, streamText, tool } from 'ai'
import { z } from 'zod'

const [scene, url] = process.argv.slice(2)
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' })
const tools = {
  getLocation: tool({
    description: 'Where the client is.',
    inputSchema: z.object({ precise: z.boolean().optional() }),
    execute: async () => 'Oslo',
  }),
}
const models = { responses: openai('script'), chat: openai.chat('script') }
const options = { maxRetries: 0, stopWhen: isStepCount(5) }

/** A loop with a tool, and messages behind it, that are sent whole each time. */
async function talk(model, store, ask) {
  const messages = []
  const texts = []
  const providerOptions = { openai: { store } }
  for (const content of ['where', 'plain', 'where', 'plain']) {
    messages.push({ role: 'user', content })
    const { text, steps, response } = await ask({ ...options, model, tools, messages, providerOptions })
    texts.push([text, steps.length])
    messages.push(...response.messages)
  }
  return texts
}

async function streamed(request) {
  const result = streamText({ ...request, onError: ({ error }) => console.error(error) })
  await result.consumeStream()
  return { text: await result.text, steps: await result.steps, response: await result.response }
}

/** Each ability once. */
async function abilities(model) {
  const ask = (request) => generateText({ maxRetries: 0, model, ...request })
  const output = Output.object({ schema: z.object({ sea: z.string() }) })
  const structured = await ask({ prompt: 'structured', output })
  const worked = await ask({ prompt: 'tools' })
  const data = Buffer.from('%PDF-1.4 salt')
  const content = [
    { type: 'file', data, mediaType: 'application/pdf', filename: 'sea.pdf' },
    { type: 'text', text: 'recall' },
  ]
  const read = await ask({ messages: [{ role: 'user', content }] })
  const failed = await ask({ prompt: 'fail' }).then(
    () => null,
    (error) => [error.name, error.statusCode],
  )
  const { output: found } = structured
  return { found, reasoning: worked.reasoningText, worked: worked.text, read: read.text, failed }
}

const [kind, way, store] = scene.split(' ')
const found =
  way === 'abilities'
    ? await abilities(models[kind])
    : await talk(models[kind], store === 'stored', way === 'streamed' ? streamed : generateText)
console.log(JSON.stringify(found))
