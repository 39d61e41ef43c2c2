// A chat of TanStack AI. Arguments: the server, the id of the thread, and as JSON the messages that are sent.
import { toolDefinition } from '@tanstack/ai'
import { ChatClient, fetchServerSentEvents } from '@tanstack/ai-client'

const [server, threadId, ...sent] = process.argv.slice(2)
const options = { turnstream: { model: 'script', tools: ['weather', 'explode'] } }
const locate = toolDefinition({ name: 'getLocation', description: 'Where the user is.', inputSchema: { type: 'object' } })
const chat = new ChatClient({
  connection: fetchServerSentEvents(`${server}/api/ag-ui`),
  threadId,
  forwardedProps: options,
  tools: [locate.client()],
})
for (const message of sent) {
  await chat.sendMessage(JSON.parse(message))
  const calls = chat.getMessages().flatMap(({ parts }) => parts)
  const asked = calls.find(({ type, name, output }) => type === 'tool-call' && name === 'getLocation' && !output)
  if (asked) await chat.addToolResult({ toolCallId: asked.id, tool: asked.name, output: { city: 'Bern' } })
}
const said = chat
  .getMessages()
  .map(({ role, parts }) => [role, parts.map(({ type, name, content }) => [type, name ?? content])])
console.log(JSON.stringify({ said, error: chat.getError()?.message ?? null, status: chat.getStatus() }))
process.exit(0)
