// A file in a turn: a small picture, or the name of a document. Its bytes are fetched with the token in a header.

import { h, icon, save, setText } from './dom.js'
import { TEXTS } from './texts.js'

const { files: texts } = TEXTS

export const isFile = ({ type }) => type === 'image' || type === 'document'

/** Returns the input block that sends the file of a stored block again. */
export function inputOf({ type, text, data: { source, title } }) {
  if (source.type === 'upload') return { type, source: { type: 'upload', id: source.id }, ...(title && { title }) }
  const bytes = Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join('')
  return { type, source: { type: 'base64', data: btoa(bytes) }, ...(title && { title }) }
}

export function nameOf({ type, data }) {
  return data.title ?? (type === 'image' ? texts.image : texts.document)
}

export class FileButton {
  /** `readUpload` returns the bytes of an upload as a Blob. */
  constructor(block, readUpload) {
    this.block = block
    this.readUpload = readUpload
    this.name = nameOf(block)
    this.trouble = h('span')
    this.element = h('button', { type: 'button', class: `file-button ${block.type}`, title: this.name })
    this.element.addEventListener('click', () => this.#open())
    if (block.type === 'image') this.#show()
    else this.element.append(icon('file'), h('bdi', {}, this.name), this.trouble)
  }

  remove() {
    this.removed = true
    if (this.url) URL.revokeObjectURL(this.url)
    this.element.remove()
  }

  async #show() {
    const bytes = await this.#bytes()
    if (this.removed) return
    if (!bytes) return this.element.replaceChildren(icon('file'), this.trouble)
    this.url = URL.createObjectURL(bytes)
    this.element.replaceChildren(h('img', { src: this.url, alt: this.name }))
  }

  /**
   * Returns null if the bytes cannot be read. The button shows the reason, and works again unless the file is deleted.
   */
  async #bytes() {
    const { source } = this.block.data
    if (source.type !== 'upload') return new Blob([this.block.text], { type: 'text/plain' })
    try {
      const bytes = await this.readUpload(source.id)
      setText(this.trouble, '')
      return bytes
    } catch (error) {
      this.element.disabled = error.status === 404
      const labels = this.block.type === 'image' ? texts.ofImage : texts.ofDocument
      setText(this.trouble, error.status === 404 ? labels.gone : labels.unread)
      return null
    }
  }

  async #open() {
    if (this.block.type === 'image') return this.url ? enlarge(this.url, this.name) : this.#show()
    const bytes = await this.#bytes()
    if (bytes) save(this.name, bytes.type, bytes)
  }
}

function enlarge(url, name) {
  const close = h('button', { class: 'quiet', 'aria-label': TEXTS.close }, icon('cross'))
  const dialog = h('dialog', { class: 'picture', 'aria-label': name }, h('form', { method: 'dialog' }, close))
  dialog.append(h('img', { src: url, alt: name }))
  dialog.addEventListener('close', () => dialog.remove())
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close())
  document.body.append(dialog)
  dialog.showModal()
}
