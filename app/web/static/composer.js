// Where people write.

import { find } from './dom.js'

export class Composer {
  /** `send(text, onBusy)` resolves to whether it was sent. */
  constructor({ send, stop, editLast }) {
    Object.assign(this, { send, stop, editLast })
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
    if (!text || this.sending) return
    this.sending = true
    this.words.value = ''
    this.#fit()
    const onBusy = new FormData(this.form).get('on_busy')
    if (!(await this.send(text, onBusy)) && !this.words.value) this.words.value = text // nothing that was written is lost
    this.sending = false
    this.#fit()
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
