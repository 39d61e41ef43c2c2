// A page around the chat of app/turnstream/web/packages/copilotkit.md. It names its thread behind the #.
import { useAgentContext, useCopilotKit, useDefaultRenderTool, useFrontendTool } from '@copilotkit/react-core/v2'
import { StrictMode, useEffect, useState } from 'react'
import { createRoot } from 'react-dom/client'
import { z } from 'zod'
import { Chat } from './documented/copilotkit.jsx'

function PageTools() {
  useAgentContext({ description: 'The page', value: 'a harbour' })
  useFrontendTool({
    name: 'getLocation',
    description: 'Where the user is.',
    parameters: z.object({}),
    handler: async () => ({ city: 'Bern' }),
  })
  useDefaultRenderTool({ render: ({ name, result }) => <p data-tool={name}>{result}</p> })
  return null
}

function Failure() {
  const { copilotkit } = useCopilotKit()
  const [message, setMessage] = useState('')
  useEffect(() => {
    const { unsubscribe } = copilotkit.subscribe({ onError: ({ error }) => setMessage(error.message) })
    return unsubscribe
  }, [copilotkit])
  return <p role="alert">{message}</p>
}

createRoot(document.body.appendChild(document.createElement('main'))).render(
  <StrictMode>
    <Chat threadId={location.hash.slice(1)}>
      <PageTools />
      <Failure />
    </Chat>
  </StrictMode>,
)
