// Files for the message that is being written: pasted, dropped or chosen, uploaded at once, shown as chips.

import { find, h, icon, iconButton } from './dom.js'

const IMAGES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp']
const ACCEPTED = { images: IMAGES.join(), documents: 'application/pdf,text/*,application/json' }

export class Attachments {
  /** `tell` is told what could not be attached, and why. */
  constructor(client, tell) {
    this.client = client
    this.tell = tell
    this.chips = find('#attached')
    this.button = find('#attach')
    this.picker = find('#pick-attachments')
    this.words = find('#words')
    this.items = []
    this.offer({ images: true, documents: true })
    this.button.addEventListener('click', () => this.picker.click())
    this.picker.addEventListener('change', () => {
      this.add([...this.picker.files])
      this.picker.value = ''
    })
    this.words.addEventListener('paste', (event) => this.#paste(event))
  }

  /** What the model of the open chat can look at. */
  offer(can) {
    this.can = can
    this.button.hidden = !this.offered
    const kinds = Object.keys(ACCEPTED).filter((kind) => can[kind])
    this.picker.accept = kinds.length === 1 ? ACCEPTED[kinds[0]] : '' // what the server takes, it sees by the bytes
  }

  get offered() {
    return this.can.images || this.can.documents
  }

  add(files) {
    for (const file of files) this.#add(file)
  }

  /** What is attached, once all of it has been uploaded; its chips are gone. Null where some of it was refused. */
  async take() {
    const taken = [...this.items]
    await Promise.all(taken.map((item) => item.uploaded))
    if (taken.some((item) => item.refused)) return null
    const still = taken.filter((item) => this.items.includes(item))
    for (const item of still) this.#remove(item)
    return still
  }

  /** What was taken and could not be sent. */
  putBack(taken) {
    this.items = [...taken, ...this.items]
    this.chips.prepend(...taken.map((item) => item.chip))
  }

  #add(file) {
    const chip = h('li', { class: 'chip', 'data-state': 'uploading' }, pictureOf(file), h('bdi', {}, file.name))
    const item = { chip }
    const remove = () => {
      this.#remove(item)
      this.#giveBack(item)
      this.words.focus()
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
    if (!this.can[image ? 'images' : 'documents'])
      throw new Error(`the model of this chat takes no ${image ? 'images' : 'documents'}`)
    const source = { type: 'upload', id }
    item.block = image ? { type: 'image', source } : { type: 'document', source, title: file.name.slice(0, 300) }
    item.chip.dataset.state = 'ready'
  }

  #refuse(item, file, error) {
    if (!this.items.includes(item)) return
    item.refused = true
    this.#remove(item)
    this.#giveBack(item)
    this.tell(`${file.name}: ${error instanceof TypeError ? 'the server cannot be reached' : error.message}`)
  }

  /** What was stored for this alone goes again; if that fails, the server sweeps it away in time. */
  async #giveBack(item) {
    await item.uploaded
    if (!item.created || this.items.some(({ id }) => id === item.id)) return
    await this.client.request('DELETE', `/api/uploads/${item.id}?if=unused`).catch(() => {})
  }

  #remove(item) {
    this.items = this.items.filter((other) => other !== item)
    item.chip.remove()
  }

  /** Words that are copied from a document come with a picture of themselves: the words are meant. */
  #paste(event) {
    const { files, types } = event.clipboardData
    if (!files.length || !this.offered || (types.includes('text/plain') && types.includes('text/html'))) return
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
