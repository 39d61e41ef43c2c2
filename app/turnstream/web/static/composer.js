// The field in which people write. Its words and files belong to the chat that is open.

import { find, sends } from './dom.js'
import { Drafts } from './drafts.js'

export class Composer {
  /** `send(text, onBusy, attachments)` takes a message to the open chat. */
  constructor({ send, stop, editLast, attachments }) {
    this.send = send
    this.stop = stop
    this.editLast = editLast
    this.attachments = attachments
    this.drafts = new Drafts()
    /** @type {string | null | undefined} null: a new one */
    this.chat = undefined
    this.form = find('#composer')
    this.field = find('#words')
    this.busy = find('#busy')
    this.keys = find('#keys')
    this.stopButton = find('#stop')
    this.form.addEventListener('submit', (event) => this.#submit(event))
    this.field.addEventListener('keydown', (event) => this.#key(event))
    this.field.addEventListener('input', () => this.#changed())
    this.stopButton.addEventListener('click', () => this.stop())
  }

  focus() {
    this.field.focus({ preventScroll: true })
  }

  show(running) {
    this.busy.hidden = !running
    this.stopButton.hidden = !running
    this.keys.hidden = running
  }

  /**
   * Shows the draft of a chat. Text that was typed before the page was ready belongs to the first chat that is opened.
   */
  open(chat) {
    const early = this.chat === undefined && this.field.value
    this.chat = chat
    this.field.value = early || this.drafts.get(chat)
    this.attachments.open(chat)
    this.#changed()
  }

  /** Moves the text that was typed for a new chat to the chat, once it has begun. */
  begin(chat) {
    this.drafts.put(null, '')
    this.chat = chat
    this.attachments.begin(chat)
    this.#changed()
  }

  /** Puts a message back into the field to be changed, in front of the text that was written since. */
  putBack(text, attachments) {
    this.field.value = [text, this.field.value].filter(Boolean).join('\n')
    this.attachments.putBack(attachments)
    this.#changed()
    this.focus()
  }

  /** Replaces the written text, and attaches the files of `blocks`. */
  fill(text, blocks) {
    this.field.value = text
    this.attachments.putBack(blocks.map((block) => ({ block })))
    this.#changed()
    this.focus()
  }

  #submit(event) {
    event.preventDefault()
    const text = this.field.value.trim()
    if (!text && !this.attachments.items.length) return
    this.field.value = ''
    this.#changed()
    this.send(text, new FormData(this.form).get('on_busy'), this.attachments.take())
  }

  #key(event) {
    if (sends(event)) this.#submit(event)
    if (event.key === 'ArrowUp' && !this.field.value) {
      event.preventDefault()
      this.editLast()
    }
  }

  #changed() {
    if (this.chat === undefined) return
    this.drafts.put(this.chat, this.field.value)
    this.#fit()
  }

  /** Makes the field as high as its text, in browsers without `field-sizing`. */
  #fit() {
    if (CSS.supports('field-sizing', 'content')) return
    this.field.style.height = 'auto'
    this.field.style.height = `${this.field.scrollHeight}px`
  }
}
