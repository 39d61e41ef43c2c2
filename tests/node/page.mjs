// What a page does with the AI SDK, told line by line: commands on standard input, the page after each on standard output.
import { createInterface } from 'node:readline'
import { Chat } from '@ai-sdk/react'
import {
  DefaultChatTransport,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from 'ai'

let chat
let going = Promise.resolve()
const seen = {}

const turnstream = {
  model: 'script',
  tools: [
    'weather',
    'explode',
    'send_mail',
    { type: 'client', name: 'getLocation', description: 'Where the user is.', input_schema: { type: 'object' } },
  ],
}

const part = (state, name) =>
  chat.messages.flatMap((message) => message.parts).findLast((one) => isToolUIPart(one) && one.state === state && (!name || one.type === `tool-${name}`))

const text = () => (chat.lastMessage?.parts ?? []).map((one) => (one.type === 'text' ? one.text : '')).join('')

const commands = {
  async open({ url, id, messages }) {
    Object.assign(seen, { finished: 0, transient: [], toolCalls: [] })
    chat = new Chat({
      id,
      messages,
      transport: new DefaultChatTransport({ api: `${url}/api/ai-sdk/chat`, body: { turnstream } }),
      sendAutomaticallyWhen: (all) =>
        lastAssistantMessageIsCompleteWithToolCalls(all) || lastAssistantMessageIsCompleteWithApprovalResponses(all),
      onFinish: () => void seen.finished++,
      onData: (data) => void (data.transient && seen.transient.push(data.type)),
      onToolCall: ({ toolCall }) => void seen.toolCalls.push(toolCall.toolName),
    })
  },
  send: ({ text, messageId }) => chat.sendMessage({ text, messageId }),
  async begin({ text }) {
    going = chat.sendMessage({ text }).catch(() => {})
  },
  until: async ({ says }) => {
    while (!text().includes(says) && chat.status !== 'error') await new Promise((done) => setTimeout(done, 5))
  },
  async beginResume() {
    going = chat.resumeStream().catch(() => {})
  },
  settled: () => going,
  resume: () => chat.resumeStream(),
  regenerate: () => chat.regenerate(),
  stop: () => chat.stop(),
  async approve({ approved, reason }) {
    await chat.addToolApprovalResponse({ id: part('approval-requested').approval.id, approved, reason })
  },
  async output({ tool, output, errorText }) {
    const { toolCallId } = part('input-available', tool)
    await chat.addToolOutput({ tool, toolCallId, output, ...(errorText && { state: 'output-error', errorText }) })
  },
  carryOn: () => chat.sendMessage(),
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
  console.log(JSON.stringify({ failed, status: chat.status, error: chat.error?.message, seen, messages: chat.messages }))
}
