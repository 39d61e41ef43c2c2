// The Anthropic SDK against the server: `node anthropic.mjs SCENE URL [ARGUMENT …]` prints what it got as JSON.
import Anthropic from '@anthropic-ai/sdk'

const [scene, url, ...rest] = process.argv.slice(2)
const client = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 })
const usual = { model: 'script', max_tokens: 1000 }
const user = (content) => ({ role: 'user', content })

const locate = {
  name: 'getLocation',
  description: 'Where the client is.',
  input_schema: { type: 'object', properties: { precise: { type: 'boolean' } } },
}

const scenes = {
  async answers() {
    const made = await client.messages.create({ ...usual, messages: [user('plain')] })
    const messages = [user('plain'), { role: 'assistant', content: made.content }, user('tools')]
    const stream = client.messages.stream({ ...usual, messages })
    const types = new Set()
    for await (const event of stream) types.add(event.type)
    const final = await stream.finalMessage()
    const models = []
    for await (const model of client.models.list()) models.push(model.id)
    const counted = await client.messages.countTokens({ model: 'script', messages: [user('plain')] })
    return {
      text: made.content[0].text,
      streamed: final.content.map((block) => [block.type, block.text ?? block.thinking]),
      types: [...types].sort(),
      models,
      counts: counted.input_tokens > 0,
    }
  },

  async tools() {
    const messages = [user('where')]
    const asked = await client.messages.stream({ ...usual, messages, tools: [locate] }).finalMessage()
    const call = asked.content.find((block) => block.type === 'tool_use')
    messages.push({ role: 'assistant', content: asked.content })
    messages.push(user([{ type: 'tool_result', tool_use_id: call.id, content: 'Bern' }]))
    const answered = await client.messages.create({ ...usual, messages, tools: [locate] })
    return { call: [call.name, call.input], stop: asked.stop_reason, text: answered.content[0].text }
  },

  async structured() {
    const properties = { sea: { type: 'string' } }
    const schema = { type: 'object', properties, required: ['sea'], additionalProperties: false }
    const output_config = { format: { type: 'json_schema', schema } }
    const made = await client.messages.create({ ...usual, messages: [user('structured')], output_config })
    return JSON.parse(made.content[0].text)
  },

  async files() {
    const source = { type: 'text', media_type: 'text/plain', data: 'Salt.' }
    const content = [
      { type: 'document', source },
      { type: 'text', text: 'recall' },
    ]
    return (await client.messages.create({ ...usual, messages: [user(content)] })).content[0].text
  },

  /** A stream that is left in its first words. Its response names the message. */
  async begin(words) {
    const body = { ...usual, messages: [user(words)], stream: true }
    const { data: stream, response } = await client.messages.create(body).withResponse()
    for await (const event of stream) if (event.type === 'content_block_delta') break
    return response.headers.get('turnstream-resume')
  },

  async resume(words, name) {
    const options = { headers: { 'turnstream-resume': name } }
    const stream = client.messages.stream({ ...usual, messages: [user(words)] }, options)
    const streamed = []
    stream.on('text', (text) => streamed.push(text))
    const { content } = await stream.finalMessage()
    return [streamed.join(''), content.map(({ text }) => text).join('')]
  },

  async errors() {
    const failures = [
      () => client.messages.create({ ...usual, model: 'none', messages: [user('plain')] }),
      () => client.messages.create({ ...usual, messages: [user('plain')], temperature: 0.3 }),
      () => client.messages.create({ ...usual, messages: [user('fail')] }),
    ]
    const found = []
    for (const fails of failures) {
      await fails().catch((error) => found.push([error.constructor.name, error.error.error.type]))
    }
    return found
  },
}

console.log(JSON.stringify(await scenes[scene](...rest)))
