// The field in which people write.

import { find } from './dom.js'

export class Composer {
  /** `send(text, onBusy, files, chat)` resolves to whether it was sent; `chat` is `openChat()` when the person sent it. */
  constructor({ send, openChat, stop, editLast, attachments }) {
    this.send = send
    this.openChat = openChat
    this.stop = stop
    this.editLast = editLast
    this.attachments = attachments
    this.form = find('#composer')
    this.field = find('#words')
    this.busy = find('#busy')
    this.keys = find('#keys')
    this.stopButton = find('#stop')
    this.form.addEventListener('submit', (event) => this.#submit(event))
    this.field.addEventListener('keydown', (event) => this.#key(event))
    this.field.addEventListener('input', () => this.#fit())
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

  async #submit(event) {
    event?.preventDefault()
    const text = this.field.value.trim()
    if (this.sending || (!text && !this.attachments.items.length)) return
    this.sending = true
    this.field.value = ''
    this.#fit()
    const onBusy = new FormData(this.form).get('on_busy')
    const chat = this.openChat()
    const files = await this.attachments.take()
    if (!files || !(await this.#send(text, onBusy, files, chat))) this.#putBack(text, files ?? [])
    this.sending = false
    this.#fit()
  }

  /** Resolves to true also if nothing is left to send, since the person has removed all files meanwhile. */
  #send(text, onBusy, files, chat) {
    const blocks = files.map((file) => file.block)
    return (!text && !blocks.length) || this.send(text, onBusy, blocks, chat)
  }

  /** Puts back a message that was not sent, before what was written since. */
  #putBack(text, files) {
    this.field.value = [text, this.field.value].filter(Boolean).join('\n')
    this.attachments.putBack(files)
  }

  #key(event) {
    if (event.isComposing) return
    if (event.key === 'Enter' && !event.shiftKey) this.#submit(event)
    if (event.key === 'Escape' && !this.busy.hidden) this.stop()
    if (event.key === 'ArrowUp' && !this.field.value) {
      event.preventDefault()
      this.editLast()
    }
  }

  /** Makes the field as high as its text, in browsers without `field-sizing`. */
  #fit() {
    if (CSS.supports('field-sizing', 'content')) return
    this.field.style.height = 'auto'
    this.field.style.height = `${this.field.scrollHeight}px`
  }
}
