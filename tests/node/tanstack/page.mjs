// A chat of TanStack AI. Arguments: the server, the id of the thread, and the messages that are sent.
import { ChatClient, fetchServerSentEvents } from '@tanstack/ai-client'

const [server, threadId, ...words] = process.argv.slice(2)
const options = { turnstream: { model: 'script', tools: ['weather', 'explode'] } }
const chat = new ChatClient({ connection: fetchServerSentEvents(`${server}/api/ag-ui`), threadId, forwardedProps: options })
for (const text of words) await chat.sendMessage(text)
const said = chat
  .getMessages()
  .map(({ role, parts }) => [role, parts.map(({ type, name, content }) => [type, name ?? content])])
console.log(JSON.stringify(said))
process.exit(0)
