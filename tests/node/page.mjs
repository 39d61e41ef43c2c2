// What a page does with the AI SDK, told line by line: commands on standard input, the page after each on standard output.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { Chat, useChat } from '@ai-sdk/react'
import {
  DefaultChatTransport,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from 'ai'
import { createElement } from 'react'
import { create } from 'react-test-renderer'

// The functions of docs/ai-sdk.md, as they stand there.
const documented = readFileSync('../../docs/ai-sdk.md', 'utf8').match(/```js\n(const api = [^]*?)```/)[1]
const recipe = new Function('server', `${documented}; return { api, uncached, stopAnswer, comeBack }`)

let chat, shown, component, stopAnswer
let going = Promise.resolve()
const seen = {}

const { fetch } = globalThis
globalThis.fetch = async (url, init) => {
  if (String(url).endsWith('/stop')) seen.stops++
  const answer = await fetch(url, init)
  if (String(url).endsWith('/stream')) seen.resumed++
  return answer
}

function Page(options) {
  shown = useChat(options)
  return null
}

// As of an app that renews its token before a request.
const headers = async () => {
  await new Promise((done) => setTimeout(done, 20))
  return {}
}

const turnstream = {
  model: 'script',
  tools: [
    'weather',
    'explode',
    'send_mail',
    { type: 'client', name: 'getLocation', description: 'Where the user is.', input_schema: { type: 'object' } },
  ],
}

// React is late: what the hook shows is what the chat is, once it has rendered.
const state = ({ status, error, messages }) => JSON.stringify({ status, error: error?.message, messages })
const rendered = async () => {
  while (!shown || state(shown) !== state(chat)) await new Promise((done) => setImmediate(done))
}

const part = (state, name) =>
  chat.messages
    .flatMap((message) => message.parts)
    .findLast((one) => isToolUIPart(one) && one.state === state && (!name || one.type === `tool-${name}`))

const text = () => (chat.messages.at(-1)?.parts ?? []).map((one) => (one.type === 'text' ? one.text : '')).join('')

const commands = {
  async open({ url, id, messages, resume, documented, packages }) {
    const { api, uncached, comeBack, ...functions } = recipe(url)
    stopAnswer = documented && functions.stopAnswer
    const own = packages && (await import(createRequire(`${packages}/`).resolve('@turnstream/ai-sdk')))
    const Transport = own?.TurnstreamChatTransport ?? DefaultChatTransport
    Object.assign(seen, { finished: 0, errors: 0, transient: [], toolCalls: [], stops: 0, resumed: 0 })
    component?.unmount()
    shown = undefined
    chat = new Chat({
      id,
      messages,
      transport: new Transport({ api, body: { turnstream }, headers, ...(documented && { fetch: uncached }) }),
      onError: (error) => {
        seen.errors++
        if (documented) comeBack(error, () => shown.resumeStream())
      },
      sendAutomaticallyWhen: (all) =>
        lastAssistantMessageIsCompleteWithToolCalls(all) || lastAssistantMessageIsCompleteWithApprovalResponses(all),
      onFinish: () => void seen.finished++,
      onData: (data) => void (data.transient && seen.transient.push(data.type)),
      onToolCall: ({ toolCall }) => void seen.toolCalls.push(toolCall.toolName),
    })
    component = create(createElement(Page, { chat, resume }))
  },
  send: ({ text, messageId, files, more }) =>
    shown.sendMessage({ text, messageId, files }, more && { body: { turnstream: { ...turnstream, ...more } } }),
  async begin({ text }) {
    going = shown.sendMessage({ text }).catch(() => {})
  },
  until: async ({ says }) => {
    while (!text().includes(says) && chat.status !== 'error') await new Promise((done) => setTimeout(done, 5))
  },
  settled: () => going,
  resume: () => shown.resumeStream(),
  async replace() {
    const before = seen.resumed
    void shown.resumeStream()
    while (seen.resumed === before) await new Promise((done) => setTimeout(done, 5))
  },
  regenerate: () => shown.regenerate(),
  stop: () => Promise.all([shown.stop(), stopAnswer && stopAnswer(chat.id)]),
  async approve({ approved, reason }) {
    await shown.addToolApprovalResponse({ id: part('approval-requested').approval.id, approved, reason })
  },
  async output({ tool, output, errorText }) {
    const { toolCallId } = part('input-available', tool)
    await shown.addToolOutput({ tool, toolCallId, output, ...(errorText && { state: 'output-error', errorText }) })
  },
  ready: async () => {
    while (chat.status !== 'ready') await new Promise((done) => setTimeout(done, 5))
  },
  idle: async () => {
    while (!['ready', 'error'].includes(chat.status)) await new Promise((done) => setTimeout(done, 5))
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line)
  let failed
  try {
    await commands[command](options)
  } catch (error) {
    failed = String(error.stack)
  }
  await rendered()
  console.log(JSON.stringify({ failed, seen, ...JSON.parse(state(shown)) }))
}
