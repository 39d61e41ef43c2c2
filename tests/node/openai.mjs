// The OpenAI SDK against the server: `node openai.mjs SCENE URL [ARGUMENT …]` prints what it got as JSON.
import OpenAI, { toFile } from 'openai'
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod'
import { z } from 'zod'

const [scene, url, ...rest] = process.argv.slice(2)
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })

const locate = {
  type: 'function',
  name: 'getLocation',
  description: 'Where the client is.',
  parameters: { type: 'object', properties: { precise: { type: 'boolean' } } },
  strict: false,
}
const { type, ...declared } = locate
const locateInChats = { type, function: { name: declared.name, parameters: declared.parameters } }

const scenes = {
  async answers() {
    const made = await client.responses.create({ input: 'plain', metadata: { topic: 'ships' } })
    const stream = client.responses.stream({ input: 'tools', previous_response_id: made.id })
    const numbers = []
    for await (const event of stream) numbers.push(event.sequence_number)
    const final = await stream.finalResponse()
    const models = []
    for await (const model of client.models.list()) models.push(model.id)
    return {
      text: made.output_text,
      metadata: made.metadata,
      streamed: final.output.map((item) => [item.type, item.status ?? null]),
      grows: numbers.every((number, place) => place === 0 || number > numbers[place - 1]),
      models,
    }
  },

  async functions() {
    const asked = await client.responses.create({ input: 'where', tools: [locate] })
    const call = asked.output.find((item) => item.type === 'function_call')
    const output = { type: 'function_call_output', call_id: call.call_id, output: 'Bern' }
    const answered = await client.responses.create({ input: [output], previous_response_id: asked.id, tools: [locate] })
    const messages = [{ role: 'user', content: 'where' }]
    const runner = client.chat.completions.stream({ model: 'script', messages, tools: [locateInChats] })
    const completion = await runner.finalChatCompletion()
    messages.push(completion.choices[0].message, {
      role: 'tool',
      tool_call_id: completion.choices[0].message.tool_calls[0].id,
      content: 'Bern',
    })
    const last = await client.chat.completions.create({ model: 'script', messages, tools: [locateInChats] })
    return { call: call.name, text: answered.output_text, chat: last.choices[0].message.content }
  },

  async conversations() {
    const items = [
      { role: 'user', content: 'What floats?' },
      { role: 'assistant', content: 'A ship.' },
    ]
    const made = await client.conversations.create({ items })
    await client.responses.create({ input: 'plain', conversation: made.id })
    const types = []
    for await (const item of client.conversations.items.list(made.id, { order: 'asc' })) types.push(item.role)
    return types
  },

  async structured() {
    const sea = z.object({ sea: z.string() })
    const made = await client.responses.parse({ input: 'structured', text: { format: zodTextFormat(sea, 'sea') } })
    const completion = await client.chat.completions.parse({
      model: 'script',
      messages: [{ role: 'user', content: 'structured' }],
      response_format: zodResponseFormat(sea, 'sea'),
    })
    return [made.output_parsed, completion.choices[0].message.parsed]
  },

  async files() {
    const made = await client.files.create({
      file: await toFile(Buffer.from('Salt.'), 'sea.txt'),
      purpose: 'user_data',
    })
    const file = { type: 'input_file', file_id: made.id }
    const content = [file, { type: 'input_text', text: 'recall' }]
    const answered = await client.responses.create({ input: [{ role: 'user', content }] })
    const listed = []
    for await (const each of client.files.list({ purpose: 'user_data' })) listed.push(each.filename)
    const bytes = await (await client.files.content(made.id)).text()
    const { deleted } = await client.files.delete(made.id)
    return { name: made.filename, text: answered.output_text, listed: listed.includes('sea.txt'), bytes, deleted }
  },

  async errors() {
    const names = []
    const tries = [
      () => client.responses.create({ input: 'plain', model: 'none' }),
      () => client.responses.create({ input: 'plain', top_logprobs: 2 }),
    ]
    for (const attempt of tries) {
      await attempt().then(
        () => names.push('nothing'),
        (error) => names.push([error.constructor.name, error.param ?? null]),
      )
    }
    return names
  },

  async begin(word) {
    const made = await client.responses.create({ input: word, background: true })
    for await (const event of await client.responses.retrieve(made.id, { stream: true })) {
      if (event.type === 'response.output_text.delta') return { id: made.id, last: event.sequence_number }
    }
  },

  async resume(id, last) {
    let text = ''
    const after = { stream: true, starting_after: Number(last) }
    for await (const event of await client.responses.retrieve(id, after)) {
      if (event.type === 'response.output_text.delta') text += event.delta
    }
    const final = await client.responses.stream({ response_id: id }).finalResponse()
    return { text, whole: final.output_text }
  },
}

console.log(JSON.stringify(await scenes[scene](...rest)))
