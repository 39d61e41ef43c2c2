// A file in what the user said: a picture in small, or the name of a document. Its bytes come with the token in a header.

import { h, icon, save } from './dom.js'

export const isFile = ({ type }) => type === 'image' || type === 'document'

/** The block of a file as it is said again. */
export function fileSaid({ type, text, data: { source, title } }) {
  if (source.type === 'upload') return { type, source: { type: 'upload', id: source.id }, ...(title && { title }) }
  const bytes = Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join('')
  return { type, source: { type: 'base64', data: btoa(bytes) }, ...(title && { title }) }
}

export function nameOf({ type, data }) {
  return data.title ?? (type === 'image' ? 'Image' : 'Document')
}

export class FileButton {
  /** `read` gives the bytes of an upload. */
  constructor(block, read) {
    Object.assign(this, { block, read })
    const name = nameOf(block)
    this.element = h('button', { type: 'button', class: `file-said ${block.type}`, 'aria-label': name, title: name })
    this.element.addEventListener('click', () => this.#open())
    this.element.append(...(block.type === 'image' ? [] : [icon('file'), h('bdi', {}, name)]))
    if (block.type === 'image') this.#show()
  }

  forget() {
    if (this.url) URL.revokeObjectURL(this.url)
    this.element.remove()
  }

  async #show() {
    try {
      this.url = URL.createObjectURL(await this.#bytes())
      this.element.append(h('img', { src: this.url, alt: '' }))
    } catch {
      this.element.append(icon('file'), h('span', {}, 'The image is gone'))
    }
  }

  async #bytes() {
    const { source } = this.block.data
    return source.type === 'upload' ? this.read(source.id) : new Blob([this.block.text], { type: 'text/plain' })
  }

  async #open() {
    if (this.block.type === 'image' && this.url) return enlarge(this.url, nameOf(this.block))
    const bytes = await this.#bytes().catch(() => null)
    if (bytes) save(nameOf(this.block), bytes.type, bytes)
    else this.element.disabled = true
  }
}

function enlarge(url, name) {
  const close = h('button', { class: 'quiet', 'aria-label': 'Close' }, icon('cross'))
  const dialog = h('dialog', { class: 'picture', 'aria-label': name }, h('form', { method: 'dialog' }, close))
  dialog.append(h('img', { src: url, alt: name }))
  dialog.addEventListener('close', () => dialog.remove())
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close())
  document.body.append(dialog)
  dialog.showModal()
}
