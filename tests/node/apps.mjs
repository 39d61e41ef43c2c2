// Apps of MCP servers in the clients that have conventions for them: what each makes of one turn, as JSON.
// node apps.mjs SERVER MODEL
import { HttpAgent } from '@ag-ui/client'
import { experimental_MCPAppRenderer as AppRenderer } from '@ai-sdk/react'
import { DefaultChatTransport, readUIMessageStream } from 'ai'
import { createElement } from 'react'
import { act, create } from 'react-test-renderer'

globalThis.IS_REACT_ACT_ENVIRONMENT = true
const [server, first, second] = process.argv.slice(2)

const transport = new DefaultChatTransport({ api: `${server}/api/ai-sdk/chat`, body: { turnstream: { model: first } } })
const stream = await transport.sendMessages({
  trigger: 'submit-message',
  chatId: crypto.randomUUID(),
  messages: [{ id: 'm1', role: 'user', parts: [{ type: 'text', text: 'Waves?' }] }],
})
let message
for await (const next of readUIMessageStream({ stream })) message = next
const part = message.parts.find(({ type }) => type === 'tool-apps__chart')
const app = await new Promise((resolve) => {
  const loadResource = (one) => {
    resolve(one)
    return new Promise(() => {})
  }
  act(() => create(createElement(AppRenderer, { part, sandbox: { url: 'about:blank' }, loadResource })))
})

const agent = new HttpAgent({ url: `${server}/api/ag-ui`, threadId: crypto.randomUUID() })
agent.addMessage({ id: 'm1', role: 'user', content: 'Waves?' })
await agent.runAgent({ forwardedProps: { turnstream: { model: second } } })
const messages = structuredClone(agent.messages)
const { serverHash, serverId } = messages.find(({ activityType }) => activityType === 'mcp-apps').content
const asked = async (method, params) => {
  const request = { serverHash, serverId, method, params }
  return (await agent.runAgent({ forwardedProps: { __proxiedMCPRequest: request } })).result
}
const page = await asked('resources/read', { uri: 'ui://apps/chart' })
const called = await asked('tools/call', { name: 'refresh', arguments: {} })
const stored = (await (await fetch(`${server}/api/ag-ui/threads/${agent.threadId}`)).json()).messages
console.log(JSON.stringify({ part, app, messages, after: agent.messages, stored, page, called }))
process.exit(0)
