// Files for the message that is being written: pasted, dropped or chosen, uploaded at once, shown as chips. Files that are
// dropped elsewhere become documents.

import { find, h, icon, iconButton } from './dom.js'

const IMAGES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp']
const ACCEPTED = { images: IMAGES.join(), documents: 'application/pdf,text/*,application/json' }

export class Attachments {
  /** `report` is called with the name of a file that could not be attached, and the reason. */
  constructor(client, report) {
    this.client = client
    this.report = report
    this.chips = find('#attached')
    this.button = find('#attach')
    this.picker = find('#pick-attachments')
    this.field = find('#words')
    this.items = []
    this.allow({ images: true, documents: true })
    this.button.addEventListener('click', () => this.picker.click())
    this.picker.addEventListener('change', () => {
      this.add([...this.picker.files])
      this.picker.value = ''
    })
    this.field.addEventListener('paste', (event) => this.#paste(event))
  }

  /** Sets the kinds of files that the model of the open chat can read. */
  allow(allowed) {
    this.allowed = allowed
    this.button.hidden = !this.enabled
    const kinds = Object.keys(ACCEPTED).filter((kind) => allowed[kind])
    this.picker.accept = kinds.length === 1 ? ACCEPTED[kinds[0]] : '' // else any: the server recognises types by the bytes
  }

  get enabled() {
    return this.allowed.images || this.allowed.documents
  }

  add(files) {
    for (const file of files) this.#add(file)
  }

  /** Resolves to the attached files, once all are uploaded, and removes their chips. Null if one of them was refused. */
  async take() {
    const taken = [...this.items]
    await Promise.all(taken.map((item) => item.uploaded))
    if (taken.some((item) => item.refused)) return null
    const left = taken.filter((item) => this.items.includes(item)) // the person may have removed some meanwhile
    for (const item of left) this.#remove(item)
    return left
  }

  /** Attaches files again that were taken and could not be sent. */
  putBack(taken) {
    this.items = [...taken, ...this.items]
    this.chips.prepend(...taken.map((item) => item.chip))
  }

  #add(file) {
    const chip = h('li', { class: 'chip', 'data-state': 'uploading' }, pictureOf(file), h('bdi', {}, file.name))
    const item = { chip }
    const remove = () => {
      this.#remove(item)
      this.#discard(item)
      this.field.focus()
    }
    chip.append(iconButton('cross', `Do not attach ${file.name}`, remove))
    item.uploaded = this.#upload(file, item).catch((error) => this.#refuse(item, file, error))
    this.items.push(item)
    this.chips.append(chip)
  }

  async #upload(file, item) {
    const { id, media_type, created } = await this.client.insist('POST', '/api/uploads', file)
    Object.assign(item, { id, created })
    const image = IMAGES.includes(media_type)
    if (!this.allowed[image ? 'images' : 'documents'])
      throw new Error(`the model of this chat takes no ${image ? 'images' : 'documents'}`)
    const source = { type: 'upload', id }
    item.block = image ? { type: 'image', source } : { type: 'document', source, title: file.name.slice(0, 300) }
    item.chip.dataset.state = 'ready'
  }

  #refuse(item, file, error) {
    if (!this.items.includes(item)) return
    item.refused = true
    this.#remove(item)
    this.#discard(item)
    this.report(`${file.name}: ${error instanceof TypeError ? 'the server cannot be reached' : error.message}`)
  }

  /** Deletes an upload that was stored for this message alone. If that fails, the server sweeps it later. */
  async #discard(item) {
    await item.uploaded
    if (!item.created || this.items.some(({ id }) => id === item.id)) return
    await this.client.request('DELETE', `/api/uploads/${item.id}?if=unused`).catch(() => {})
  }

  #remove(item) {
    this.items = this.items.filter((other) => other !== item)
    item.chip.remove()
  }

  /** Text that is copied from a document comes with a picture of itself: then the text is pasted, not the picture. */
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
 * Files that are dropped on the page go to the documents if their panel is open, if a folder is among them, or if the model
 * takes no files; else to the message.
 */
export function listenToDrops(documents, attachments) {
  const toMessage = () => attachments.enabled && !documents.dialog.open
  const mark = (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    document.body.dataset.dropping = toMessage() ? 'Into the message' : 'Into the documents'
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

/** The files of a dropped entry, each with its path. */
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
