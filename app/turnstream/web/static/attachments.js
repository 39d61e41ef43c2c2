// Files for the message that is being written. They are pasted, dropped or chosen, uploaded at once, and shown as
// chips. Files that are dropped elsewhere become documents.

import { find, h, icon, iconButton } from './dom.js'
import { nameOf } from './files.js'
import { draftOf } from './kept-files.js'
import { TEXTS } from './texts.js'
import { isPassing, newKey, pause } from './turnstream.js'

const { files: texts } = TEXTS

const IMAGES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp']
const ACCEPTED = { images: IMAGES.join(), documents: 'application/pdf,text/*,application/json' }

export class Attachments {
  /** `kept`: the files that this browser keeps. `report` is called with the name of a refused file, and the reason. */
  constructor(client, kept, report) {
    this.client = client
    this.kept = kept
    this.report = report
    this.chips = find('#attached')
    this.button = find('#attach')
    this.picker = find('#pick-attachments')
    this.field = find('#words')
    /** @type {Map<string | null, any[]>} the files of the message that is being written, by chat */
    this.byChat = new Map()
    this.restored = new Set() // chats whose files of an earlier visit are attached again
    this.open(null)
    this.allow(() => true)
    this.button.addEventListener('click', () => this.picker.click())
    this.picker.addEventListener('change', () => {
      this.add([...this.picker.files])
      this.picker.value = ''
    })
    this.field.addEventListener('paste', (event) => this.#paste(event))
  }

  /** Sets the files that the model of the open chat can read: `allows` is asked for the ability that a file needs. */
  allow(allows) {
    this.allows = allows
    this.button.hidden = !this.enabled
    const kinds = Object.keys(ACCEPTED).filter(allows)
    this.picker.accept = kinds.length === 1 ? ACCEPTED[kinds[0]] : '' // empty: any, as the server recognises types by the bytes
  }

  get enabled() {
    return Object.keys(ACCEPTED).some(this.allows)
  }

  add(files) {
    for (const file of files) this.#add(file)
  }

  /** Shows the files of the message that is being written to a chat. */
  open(chat) {
    this.chat = chat
    this.chips.replaceChildren(...this.items.map((item) => item.chip))
    this.#restore(chat)
  }

  /** Attaches the files of an earlier visit again. */
  async #restore(chat) {
    if (this.restored.has(chat)) return
    this.restored.add(chat)
    for (const { id, file } of await this.kept.of(draftOf(chat))) {
      const items = this.byChat.get(chat) ?? []
      if (!items.some((item) => item.id === id)) this.byChat.set(chat, [...items, this.upload(file, id)])
    }
    if (chat === this.chat) this.chips.replaceChildren(...this.items.map((item) => item.chip))
  }

  /** Moves the files that were attached for a new chat to the chat, once it has begun. */
  begin(chat) {
    this.byChat.set(chat, this.items)
    this.byChat.delete(null)
    this.restored.add(chat)
    this.#keep(this.items, chat)
    this.open(chat)
  }

  /**
   * Takes the attached files for a message, so that the next message begins without files. A file may be removed until
   * it is uploaded.
   */
  take() {
    const taken = this.items
    this.byChat.delete(this.chat)
    this.open(this.chat)
    return taken
  }

  /** Attaches files again after `take`. A file of an earlier visit has only its block. */
  putBack(taken) {
    const items = taken
      .filter((item) => !item.removed && !item.refused)
      .map((item) => (item.chip ? item : this.#restored(item.block)))
    this.byChat.set(this.chat, [...items, ...this.items])
    this.#keep(items, this.chat)
    this.open(this.chat)
  }

  #keep(items, chat) {
    for (const { id, file } of items) if (file) this.kept.keep(id, draftOf(chat), file)
  }

  get items() {
    return this.byChat.get(this.chat) ?? []
  }

  #add(file) {
    const item = this.upload(file, newKey())
    this.#keep([item], this.chat)
    this.byChat.set(this.chat, [...this.items, item])
    this.chips.append(item.chip)
  }

  /** Begins to upload a file. Returns an item that later receives its `block`, or the reason why it was `refused`. */
  upload(file, id) {
    const item = Object.assign(this.#item(file.name, pictureOf(file), 'uploading'), { id, file })
    item.uploaded = this.#upload(file, item).catch((error) => this.#refuse(item, error))
    return item
  }

  #restored(block) {
    const { id } = block.source
    return { ...this.#item(nameOf({ ...block, data: block }), icon('file'), 'ready'), block, id, upload: id }
  }

  /** @returns {any} */
  #item(name, picture, state) {
    const chip = h('li', { class: 'chip', 'data-state': state }, picture, h('bdi', {}, name))
    const item = { name, chip }
    const remove = () => {
      this.#remove(item)
      this.#discard(item)
      this.field.focus()
    }
    chip.append(iconButton('cross', texts.detach(name), remove))
    return item
  }

  async #upload(file, item) {
    const { id, media_type, created } = await this.#send(file, item)
    Object.assign(item, { upload: id, created })
    const image = IMAGES.includes(media_type)
    if (!this.allows(image ? 'images' : 'documents')) throw new Error(image ? texts.noImages : texts.noDocuments)
    const source = { type: 'upload', id }
    item.block = image ? { type: 'image', source } : { type: 'document', source, title: file.name.slice(0, 300) }
    item.chip.dataset.state = 'ready'
  }

  /** Uploads a file, with retries until the server can be reached. */
  async #send(file, item) {
    for (let tries = 0; ; tries++) {
      try {
        return await this.client.request('POST', '/api/uploads', file)
      } catch (error) {
        if (!isPassing(error) || item.removed) throw error
      }
      await pause(tries)
    }
  }

  /** Reports a refused file, unless its message was sent meanwhile: then the file is reported with the message. */
  #refuse(item, error) {
    if (item.removed) return
    item.refused = `${item.name}: ${error.message}`
    this.#discard(item)
    if (!item.chip.closest('#attached')) return
    this.#remove(item)
    this.report(item.refused)
  }

  /** Deletes an upload that was stored for this message alone. If that fails, the server sweeps it later. */
  async #discard(item) {
    await item.uploaded
    const shared = [...this.byChat.values()].flat().some(({ upload }) => upload === item.upload)
    if (item.created && !shared)
      await this.client.request('DELETE', `/api/uploads/${item.upload}?if=unused`).catch(() => {})
  }

  #remove(item) {
    item.removed = true
    this.kept.remove(item.id)
    for (const [chat, items] of this.byChat)
      this.byChat.set(
        chat,
        items.filter((other) => other !== item),
      )
    item.chip.remove()
  }

  /** Text that is copied from a document may come with a picture of the text. Then only the text is pasted. */
  #paste(event) {
    const { files, types } = event.clipboardData
    if (!files.length || !this.enabled || (types.includes('text/plain') && types.includes('text/html'))) return
    event.preventDefault()
    this.add([...files])
  }
}

function pictureOf(file) {
  if (!IMAGES.includes(file.type)) return icon('file')
  const picture = h('img', { alt: '' })
  picture.src = URL.createObjectURL(file)
  picture.addEventListener('load', () => URL.revokeObjectURL(picture.src), { once: true })
  picture.addEventListener('error', () => picture.replaceWith(icon('file')), { once: true })
  return picture
}

// --- drops -----------------------------------------------------------------------------------------------------------

/**
 * Files that are dropped on the page become documents if the panel of documents is open, if a folder is among them, or
 * if the model accepts no files. Otherwise they are attached to the message.
 */
export function listenToDrops(documents, attachments) {
  const toMessage = () => attachments.enabled && !documents.dialog.open
  const mark = (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    document.body.dataset.dropping = toMessage() ? texts.intoMessage : texts.intoDocuments
  }
  const drop = async (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    delete document.body.dataset.dropping
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry() ?? item.getAsFile())
    const found = await Promise.all(entries.filter(Boolean).map((entry) => filesIn(entry)))
    if (toMessage() && !entries.some((entry) => entry?.isDirectory))
      attachments.add(found.flat().map(([, file]) => file))
    else await documents.add(found.flat())
  }
  document.addEventListener('dragover', mark)
  document.addEventListener('dragleave', (event) => event.relatedTarget ?? delete document.body.dataset.dropping)
  document.addEventListener('drop', drop)
}

const hasFiles = (event) => event.dataTransfer.types.includes('Files')

/** Yields the files of a dropped entry, each with its path. */
async function filesIn(entry, folder = '') {
  const path = folder + entry.name
  if (entry instanceof File) return [[path, entry]]
  if (entry.isFile) return [[path, await new Promise((resolve, reject) => entry.file(resolve, reject))]]
  const reader = entry.createReader()
  const files = []
  for (;;) {
    // Chromium returns at most 100 entries of a folder at a time; an empty batch is the end.
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject))
    if (!batch.length) return files
    for (const inner of batch) files.push(...(await filesIn(inner, `${path}/`)))
  }
}
