// Where people write.

import { find } from './dom.js'

export class Composer {
  /** `send(text, onBusy, files, chat)` resolves to whether it was sent; `chat` is the `open()` one when that was asked. */
  constructor({ send, open, stop, editLast, attachments }) {
    this.send = send
    this.open = open
    this.stop = stop
    this.editLast = editLast
    this.attachments = attachments
    this.form = find('#composer')
    this.words = find('#words')
    this.busy = find('#busy')
    this.keys = find('#keys')
    this.stopButton = find('#stop')
    this.form.addEventListener('submit', (event) => this.#submit(event))
    this.words.addEventListener('keydown', (event) => this.#key(event))
    this.words.addEventListener('input', () => this.#fit())
    this.stopButton.addEventListener('click', () => this.stop())
  }

  focus() {
    this.words.focus({ preventScroll: true })
  }

  show(running) {
    this.busy.hidden = !running
    this.stopButton.hidden = !running
    this.keys.hidden = running
  }

  async #submit(event) {
    event?.preventDefault()
    const text = this.words.value.trim()
    if (this.sending || (!text && !this.attachments.items.length)) return
    this.sending = true
    this.words.value = ''
    this.#fit()
    const onBusy = new FormData(this.form).get('on_busy')
    const chat = this.open()
    const files = await this.attachments.take()
    if (!files || !(await this.#said(text, onBusy, files, chat))) this.#putBack(text, files ?? [])
    this.sending = false
    this.#fit()
  }

  /** Whether nothing is left to say: all files may have been taken away again. */
  #said(text, onBusy, files, chat) {
    const blocks = files.map((file) => file.block)
    return (!text && !blocks.length) || this.send(text, onBusy, blocks, chat)
  }

  /** Nothing that was written is lost, before or since. */
  #putBack(text, files) {
    this.words.value = [text, this.words.value].filter(Boolean).join('\n')
    this.attachments.putBack(files)
  }

  #key(event) {
    if (event.isComposing) return
    if (event.key === 'Enter' && !event.shiftKey) this.#submit(event)
    if (event.key === 'Escape' && !this.busy.hidden) this.stop()
    if (event.key === 'ArrowUp' && !this.words.value) {
      event.preventDefault()
      this.editLast()
    }
  }

  /** As high as what is written in it, where the browser does not do that by itself. */
  #fit() {
    if (CSS.supports('field-sizing', 'content')) return
    this.words.style.height = 'auto'
    this.words.style.height = `${this.words.scrollHeight}px`
  }
}
