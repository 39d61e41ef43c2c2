// The same chat twice: by the hook of @turnstream/react, and by the AI SDK with the transport of @turnstream/ai-sdk.
import { useChat as useSdkChat } from '@ai-sdk/react'
import { TurnstreamChatTransport } from '@turnstream/ai-sdk'
import { Client } from '@turnstream/client'
import { useChat } from '@turnstream/react'
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'

const { base, model } = JSON.parse(document.body.dataset.options)
const client = new Client({ base })
const transport = new TurnstreamChatTransport({ api: `${base}/api/ai-sdk/chat`, body: { turnstream: { model } } })

function Hook() {
  const { turns, running, connection, send } = useChat(client, null)
  const words = turns.map((turn) => turn.blocks.map((block) => block.text).join('')).join('|')
  return (
    <p id="hook" data-state={running ? connection : 'ready'}>
      <button onClick={() => send('Hi', { model })}>Ask</button>
      <span>{words}</span>
    </p>
  )
}

function Sdk() {
  const { messages, status, sendMessage } = useSdkChat({ transport })
  const textOf = ({ parts }) => parts.map((part) => part.text ?? '').join('')
  return (
    <p id="sdk" data-state={status}>
      <button onClick={() => sendMessage({ text: 'Hi' })}>Ask</button>
      <span>{messages.map(textOf).join('|')}</span>
    </p>
  )
}

createRoot(document.body).render(
  <StrictMode>
    <Hook />
    <Sdk />
  </StrictMode>,
)
