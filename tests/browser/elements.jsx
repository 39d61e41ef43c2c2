// AI Elements are no package: their command line writes sources into a project. These stand for those that
// app/turnstream/web/packages/ai-elements.md uses, with the properties that it gives to them.
import { createContext, useContext } from 'react'

const Children = ({ children }) => <div>{children}</div>
const Nothing = () => null

export const Conversation = Children
export const ConversationContent = Children
export const ConversationScrollButton = Nothing
export const Message = ({ from, children }) => <article data-from={from}>{children}</article>
export const MessageContent = Children
export const MessageResponse = ({ children }) => <p>{children}</p>
export const Reasoning = Children
export const ReasoningTrigger = Nothing
export const ReasoningContent = ({ children }) => <blockquote>{children}</blockquote>
export const Tool = ({ children }) => <details open>{children}</details>
export const ToolHeader = ({ type, state }) => (
  <summary>
    {type} {state}
  </summary>
)
export const ToolContent = Children
export const ToolInput = ({ input }) => <code>{JSON.stringify(input)}</code>
export const ToolOutput = ({ output, errorText }) => <output>{errorText ?? JSON.stringify(output)}</output>

const Requested = createContext(false)
export const Confirmation = ({ approval, state, children }) => (
  <Requested.Provider value={Boolean(approval) && state === 'approval-requested'}>{children}</Requested.Provider>
)
export const ConfirmationRequest = ({ children }) => useContext(Requested) && children
export const ConfirmationActions = ConfirmationRequest
export const ConfirmationAction = (properties) => <button type="button" {...properties} />

const filePart = (file) =>
  new Promise((resolve) => {
    const reader = new FileReader()
    const part = { type: 'file', mediaType: file.type, filename: file.name }
    reader.onload = () => resolve({ ...part, url: reader.result })
    reader.readAsDataURL(file)
  })

export const PromptInput = ({ onSubmit, children }) => {
  const submit = async (event) => {
    event.preventDefault()
    const form = event.currentTarget
    const data = new FormData(form)
    const files = data.getAll('files').filter(({ size }) => size > 0)
    const sent = await Promise.all(files.map(filePart)) // as PromptInput does
    form.reset()
    onSubmit({ text: data.get('message'), files: sent }, event)
  }
  return (
    <form onSubmit={submit}>
      <input name="files" type="file" />
      {children}
    </form>
  )
}
export const PromptInputTextarea = () => <textarea name="message" />
export const PromptInputFooter = Children
export const PromptInputSubmit = ({ status, onStop }) =>
  status === 'submitted' || status === 'streaming' ? (
    <button key="stop" type="button" aria-label="Stop" onClick={onStop} />
  ) : (
    <button key="submit" aria-label="Submit" />
  )
