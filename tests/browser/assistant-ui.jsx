// The smallest components over the runtime of app/turnstream/web/packages/assistant-ui.md.
import {
  ActionBarPrimitive,
  AttachmentPrimitive,
  ComposerPrimitive,
  ErrorPrimitive,
  MessagePrimitive,
  ThreadListItemPrimitive,
  ThreadListPrimitive,
  ThreadPrimitive,
  useAssistantInstructions,
  useAssistantTool,
} from '@assistant-ui/react'
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { Assistant } from './documented/assistant-ui.jsx'

function ToolCall({ toolName, result, approval, respondToApproval }) {
  return (
    <p data-tool={toolName}>
      {JSON.stringify(result ?? null)}
      {approval && approval.approved === undefined && (
        <button onClick={() => respondToApproval({ approved: true })}>Approve</button>
      )}
    </p>
  )
}

const Thought = ({ text }) => <blockquote>{text}</blockquote>

const Attachment = () => (
  <AttachmentPrimitive.Root>
    <AttachmentPrimitive.Name />
  </AttachmentPrimitive.Root>
)

const Message = () => (
  <MessagePrimitive.Root>
    <MessagePrimitive.Attachments components={{ Attachment }} />
    <MessagePrimitive.Parts components={{ Reasoning: Thought, tools: { Fallback: ToolCall } }} />
    <MessagePrimitive.Error>
      <ErrorPrimitive.Root>
        <ErrorPrimitive.Message />
      </ErrorPrimitive.Root>
    </MessagePrimitive.Error>
    <ActionBarPrimitive.Reload>Again</ActionBarPrimitive.Reload>
  </MessagePrimitive.Root>
)

const Item = () => (
  <ThreadListItemPrimitive.Root>
    <ThreadListItemPrimitive.Trigger>
      <ThreadListItemPrimitive.Title fallback="New" />
    </ThreadListItemPrimitive.Trigger>
    <ThreadListItemPrimitive.Delete>Delete</ThreadListItemPrimitive.Delete>
  </ThreadListItemPrimitive.Root>
)

function PageTools() {
  useAssistantInstructions('Be brief.')
  useAssistantTool({
    toolName: 'getLocation',
    description: 'Where the user is.',
    parameters: { type: 'object', properties: {} },
    execute: async () => ({ city: 'Bern' }),
  })
  return null
}

createRoot(document.body).render(
  <StrictMode>
    <Assistant>
      <PageTools />
      <ThreadListPrimitive.Root id="threads">
        <ThreadListPrimitive.New>New thread</ThreadListPrimitive.New>
        <ThreadListPrimitive.Items components={{ ThreadListItem: Item }} />
      </ThreadListPrimitive.Root>
      <ThreadPrimitive.Root>
        <main>
          <ThreadPrimitive.Messages components={{ Message }} />
        </main>
        <ComposerPrimitive.Root>
          <ComposerPrimitive.Attachments components={{ Attachment }} />
          <ComposerPrimitive.AddAttachment>Attach</ComposerPrimitive.AddAttachment>
          <ComposerPrimitive.Input />
          <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
          <ComposerPrimitive.Cancel>Cancel</ComposerPrimitive.Cancel>
        </ComposerPrimitive.Root>
      </ThreadPrimitive.Root>
    </Assistant>
  </StrictMode>,
)
