// The list of waiting messages below the composer. A person may edit, move, send or withdraw a message until its
// delivery.

import { find, h, iconButton, sends } from './dom.js'
import { inputOf, isFile, nameOf } from './files.js'
import { TEXTS } from './texts.js'

const { queue: texts } = TEXTS

const SOON = 50 // milliseconds: several events of the stream within this time lead to one request

export class Queue {
  /** `attempt(work)` shows the reason if `work` fails. `putBack(text)` receives a text that was saved too late. */
  constructor(client, conversation, { attempt, putBack }) {
    this.client = client
    this.conversation = conversation
    this.attempt = attempt
    this.putBack = putBack
    this.element = find('#queue')
    this.entries = []
    this.editing = null // the id of the message in `editor`
    conversation.on('queue', () => this.#readSoon())
    this.element.addEventListener('keydown', (event) => this.#key(event))
  }

  #readSoon() {
    clearTimeout(this.soon)
    if (!this.conversation.id) return this.#show([])
    this.soon = setTimeout(() => this.#read(), SOON)
  }

  async #read() {
    const { id } = this.conversation
    const entries = id ? await this.client.queue(id).catch(() => null) : []
    if (!entries || id !== this.conversation.id) return // the next event reads the queue again
    this.conversation.showSteers(entries)
    this.#show(entries)
  }

  #show(entries) {
    const { dataset, value: chosen } = /** @type {any} */ (document.activeElement ?? {})
    this.entries = entries
    this.element.hidden = !entries.length && !this.editing
    const items = entries.map((entry) => (entry.id === this.editing ? this.editor : this.#item(entry)))
    if (this.editing && !items.includes(this.editor)) items.unshift(this.editor) // it was delivered during the edit
    const words = this.editor?.querySelector('textarea')
    const writes = words && words === document.activeElement
    find('ol', this.element).replaceChildren(...items)
    if (writes) words.focus()
    else if (dataset?.does && chosen) this.#focus(chosen, dataset.does)
  }

  #focus(id, does) {
    const buttons = [...this.element.querySelectorAll(`button[value="${id}"]`)]
    const button = buttons.find((button) => button.dataset.does === does && !button.disabled) ?? buttons[0]
    button?.focus()
  }

  #item(entry) {
    const queued = entry.kind === 'queued'
    const line = this.entries.filter(({ kind }) => kind === 'queued')
    const first = entry === line[0]
    const last = entry === line.at(-1)
    const button = (does, icon, work, disabled = false) =>
      iconButton(icon, texts[does], work, { value: entry.id, 'data-does': does, disabled })
    return h(
      'li',
      { 'data-entry': entry.id },
      h('span', { class: 'hint' }, queued ? texts.queued : texts.steer),
      h('bdi', {}, textOf(entry) || entry.blocks.filter(isFile).map(nameOf).join(', ')),
      button('edit', 'edit', () => this.#edit(entry)),
      queued && button('up', 'up', () => this.#move(entry, -1), first),
      queued && button('down', 'down', () => this.#move(entry, 1), last),
      queued
        ? button('now', 'now', () => this.#change(entry, { kind: 'steer' }), entry.blocks.some(isFile))
        : button('later', 'clock', () => this.#change(entry, { kind: 'queued' })),
      button('withdraw', 'bin', () =>
        this.#do(() => this.client.withdraw(this.conversation.id, entry.id, entry.version)),
      ),
    )
  }

  #move(entry, by) {
    const line = this.entries.filter(({ kind }) => kind === 'queued')
    const others = line.filter((other) => other !== entry)
    const place = line.indexOf(entry) + by
    if (place < 0 || place > others.length) return
    return this.#change(entry, { after: others[place - 1]?.id ?? null })
  }

  #change(entry, changes) {
    const { id } = this.conversation
    return this.#do(() => this.client.changeQueued(id, entry.id, { version: entry.version, ...changes }))
  }

  async #do(work) {
    const done = await this.attempt(work)
    await this.#read()
    return done
  }

  #edit(entry) {
    if (this.editing) this.#close()
    const words = h('textarea', { rows: 2, 'aria-label': texts.words })
    words.value = textOf(entry)
    const save = async (event) => {
      event?.preventDefault()
      const text = words.value.trim()
      const files = entry.blocks.filter(isFile)
      if (!text && !files.length) return
      const blocks = [...files.map(inputOf), ...(text ? [{ type: 'text', text }] : [])]
      const { id } = this.conversation
      const saving = () => this.client.changeQueued(id, entry.id, { version: entry.version, blocks })
      const saved = await this.attempt(saving)
      if (!saved && id === this.conversation.id) this.putBack(text) // so that the written text is not lost
      this.#close()
      await this.#read()
      this.#focus(entry.id, 'edit')
    }
    const keys = (event) => {
      if (sends(event)) save(event)
      if (event.key !== 'Escape') return
      event.stopPropagation()
      this.#close()
      this.#show(this.entries)
      this.#focus(entry.id, 'edit')
    }
    this.editing = entry.id
    this.editor = h(
      'li',
      { class: 'editor' },
      h('form', { onsubmit: save, onkeydown: keys }, words, h('button', { class: 'primary' }, texts.save)),
    )
    this.#show(this.entries)
    words.focus()
  }

  #close() {
    this.editing = null
    this.editor = null
  }

  /** Alt and an arrow move the message that has the focus, Delete withdraws it. */
  #key(event) {
    const id = event.target.closest('[data-entry]')?.dataset.entry
    const entry = this.entries.find((entry) => entry.id === id)
    const does = { ArrowUp: event.altKey && 'up', ArrowDown: event.altKey && 'down', Delete: 'withdraw' }[event.key]
    if (!entry || !does) return
    event.preventDefault()
    const button = this.element.querySelector(`button[value="${id}"][data-does="${does}"]`)
    button?.focus()
    button?.click()
  }
}

const textOf = ({ blocks }) =>
  blocks
    .filter(({ type }) => type === 'text')
    .map(({ text }) => text)
    .join('\n\n')
