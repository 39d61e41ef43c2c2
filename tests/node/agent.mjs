// What a page does with AG-UI's own client: commands on standard input, the agent after each on standard output.
import { createInterface } from 'node:readline'
import { HttpAgent, buildResumeArray } from '@ag-ui/client'

// Where a connection is cut, the client reports it here too, and leaves a promise that nobody waits for.
console.error = () => {}
process.on('unhandledRejection', () => {})

// docs/ag-ui.md
class TurnstreamAgent extends HttpAgent {
  connect(input) {
    const connection = new HttpAgent({ url: `${this.url}/connect`, headers: this.headers })
    this.abortController = connection.abortController
    return connection.run(input)
  }
  abortRun() {
    super.abortRun()
    const stop = `${this.url}/threads/${encodeURIComponent(this.threadId)}/stop`
    return fetch(stop, { method: 'POST', headers: this.headers })
  }
}

let agent, seen
let going = Promise.resolve()

const tools = [{ name: 'getLocation', description: 'Where the user is.', parameters: { type: 'object' } }]
const turnstream = { model: 'script', tools: ['weather', 'explode', 'send_mail'] }
const options = ({ more, ...parameters } = {}) => ({
  tools,
  forwardedProps: { turnstream: { ...turnstream, ...more } },
  ...parameters,
})

const observer = {
  onEvent: ({ event }) => {
    if (!event.type.endsWith('_CONTENT') && event.type !== 'TOOL_CALL_ARGS') seen.events.push(event.type)
    if (event.type === 'CUSTOM') seen.custom.push(event.name)
  },
  onRunFinishedEvent: (params) => {
    seen.outcome = params.outcome
    seen.pending = params.pendingToolCallIds
    seen.result = params.result
    seen.usage = params.event.usage
  },
  onRunErrorEvent: ({ event }) => (seen.error = event.message),
}

const run = (parameters) => {
  seen = { events: [], custom: [] }
  return agent.runAgent(options(parameters), observer).catch((error) => {
    seen.thrown = String(error.message ?? error)
  })
}

const text = () => agent.messages.map((each) => (each.role === 'assistant' ? (each.content ?? '') : '')).join('')

const commands = {
  open({ url, id, messages }) {
    agent = new TurnstreamAgent({ url: `${url}/api/ag-ui`, threadId: id, initialMessages: messages })
    seen = { events: [], custom: [] }
  },
  send: ({ text, content, id, ...more }) => {
    agent.addMessage({ id: id ?? crypto.randomUUID(), role: 'user', content: content ?? text })
    return run(more)
  },
  begin({ text, more }) {
    agent.addMessage({ id: crypto.randomUUID(), role: 'user', content: text })
    going = run({ more })
  },
  until: async ({ says }) => {
    while (!text().includes(says) && !seen.thrown) await new Promise((done) => setTimeout(done, 5))
  },
  settled: () => going,
  run: () => run(),
  connect: () => {
    seen = { events: [], custom: [] }
    going = agent.connectAgent(options(), observer)
    return going
  },
  follow: () => {
    seen = { events: [], custom: [] }
    going = agent.connectAgent(options(), observer)
  },
  abort: () => agent.abortRun(),
  output: ({ output, error }) => {
    const toolCallId = seen.pending[0]
    agent.addMessage({
      id: crypto.randomUUID(),
      role: 'tool',
      toolCallId,
      content: output ?? '',
      ...(error && { error }),
    })
    return run()
  },
  decide: ({ payload, status = 'resolved' }) => {
    const responses = Object.fromEntries(agent.pendingInterrupts.map(({ id }) => [id, { status, payload }]))
    return run({ resume: buildResumeArray(agent.pendingInterrupts, responses) })
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...given } = JSON.parse(line)
  let failed
  try {
    await commands[command](given)
  } catch (error) {
    failed = String(error.stack)
  }
  const { messages, state, pendingInterrupts } = agent
  console.log(JSON.stringify({ failed, seen, messages, state, pendingInterrupts }))
}
