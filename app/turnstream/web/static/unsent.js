// Shows the unsent messages of the open chat beneath its turns.

import { find, h, icon } from './dom.js'
import { nameOf } from './files.js'
import { TEXTS } from './texts.js'

const { unsent: texts } = TEXTS

const BRIEF = 300 // milliseconds: a message that arrives within this time is only shown as a turn

export class Unsent {
  /** `edit` puts a message back into the field. */
  constructor(outbox, conversation, edit) {
    this.outbox = outbox
    this.conversation = conversation
    this.edit = edit
    this.element = find('#unsent')
    outbox.addEventListener('changed', () => this.draw())
    conversation.on('path', () => this.draw())
  }

  draw() {
    clearTimeout(this.soon)
    const entries = this.outbox.of(this.conversation.id)
    const [first] = entries
    const isEmpty = this.conversation.path.length + entries.length === 0
    find('#welcome').hidden = !isEmpty || this.conversation.unread
    find('#unread').hidden = !this.conversation.unread || this.conversation.path.length > 0
    const age = Date.now() - first?.at
    if (entries.length === 1 && !first.away && !first.reason && !first.missing.length && age < BRIEF) {
      this.soon = setTimeout(() => this.draw(), BRIEF - age)
      entries.pop()
    }
    const shape = JSON.stringify(entries.map((entry) => [entry, this.outbox.attachments.has(entry.key)]))
    if (shape === this.shape) return
    this.shape = shape
    this.element.replaceChildren(...entries.map((entry) => this.#message(entry, entry === first)))
    this.element.scrollIntoView({ block: 'nearest' })
  }

  #message(entry, isFirst) {
    const { text, reason } = entry
    const state = h('p', { class: reason ? 'trouble' : 'hint', role: 'status' }, stateOf(entry, isFirst))
    const again = entry.missing.length ? texts.without : texts.again
    const buttons = [
      reason && button(again, () => this.outbox.retry(entry)),
      (reason || entry.away || !isFirst) && button(texts.edit, () => this.edit(text, this.outbox.remove(entry))),
      reason && button(TEXTS.remove, () => this.outbox.remove(entry)),
    ]
    return h(
      'article',
      { class: 'turn user unsent', 'aria-label': texts.name },
      this.#files(entry),
      text && h('div', { class: 'user-text plain', dir: 'auto' }, text),
      h('div', { class: 'choices' }, state, buttons),
    )
  }

  /** Shows the files of a message. Until all files are uploaded, a person can remove a file. */
  #files({ key, files, missing }) {
    const attachments = missing.length ? this.outbox.attachments.get(key) : null
    const chips = attachments
      ? attachments.filter((one) => !one.removed).map((one) => one.chip)
      : [...files.map((block) => nameOf({ ...block, data: block })), ...missing].map(chipOf)
    return chips.length ? h('ul', { class: 'chips', 'aria-label': texts.files }, chips) : null
  }
}

const button = (label, onclick) => h('button', { type: 'button', onclick }, label)
const chipOf = (name) => h('li', { class: 'chip' }, icon('file'), h('bdi', {}, name))

function stateOf({ reason, away, missing }, isFirst) {
  if (reason) return texts.refused(reason)
  if (!isFirst) return texts.behind
  if (away) return texts.away
  return missing.length ? texts.uploading : texts.sending
}
