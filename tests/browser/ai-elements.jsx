// The chat of app/turnstream/web/packages/ai-elements.md. It names its thread behind the #.
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { Chat } from './documented/ai-elements.jsx'

createRoot(document.body.appendChild(document.createElement('main'))).render(
  <StrictMode>
    <Chat id={location.hash.slice(1)} />
  </StrictMode>,
)
