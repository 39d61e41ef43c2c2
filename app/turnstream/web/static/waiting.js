// The inbox: calls of all chats that wait for the owner, calls of other owners that this person may approve, and calls
// in chats of which this person is a member.

import { askForm } from './asks.js'
import { find, h, setText } from './dom.js'
import { TEXTS } from './texts.js'

const { waiting: texts } = TEXTS

const SHOWN = 20
const SOON = 200 // milliseconds: several events of the feed within this time lead to one request
const LOOK = 30_000 // milliseconds between two reads, because no event reports calls of other owners

export class Waiting {
  /** Reads the lists again whenever `chats` fires `waiting`. */
  constructor(client, chats) {
    this.client = client
    this.chats = chats
    this.element = find('#waiting')
    chats.addEventListener('waiting', () => this.#readSoon())
    this.element.addEventListener('toggle', () => this.element.open && this.#read())
  }

  /** Looks for calls of other owners while the page is shown. */
  follow() {
    const look = () => document.hidden || this.#read()
    document.addEventListener('visibilitychange', look)
    setInterval(look, LOOK)
    look()
  }

  #readSoon() {
    clearTimeout(this.soon)
    this.soon = setTimeout(() => this.#read(), SOON)
  }

  async #read() {
    try {
      const [own, others] = await Promise.all([
        this.client.request('GET', `/api/waiting?limit=${SHOWN}`),
        this.client.request('GET', `/api/approvals?limit=${SHOWN}`),
        this.chats.readShared(),
      ])
      this.#draw(own, others.calls)
    } catch {
      // The next event of the feed, or the next timer, reads the list again.
    }
  }

  #draw({ calls, count }, others) {
    const shared = this.chats.shared.flatMap(({ id: chat, title, waiting }) =>
      waiting.map((call) => ({ chat, title, ...call })),
    )
    const all = count + others.length + shared.length
    this.element.hidden = !all
    setText(find('#waiting summary'), texts.count(all))
    const more = count > calls.length ? [h('li', { class: 'hint' }, texts.more(count - calls.length))] : []
    const items = others.map((call) => otherItem(call, () => this.#open(call)))
    find('#waiting ul').replaceChildren(...items, ...[...shared, ...calls].map(item), ...more)
  }

  /** Shows a call of another owner with the form for its answer. */
  #open(call) {
    const { name, owner, title, turn, input } = call
    const close = h('button', { type: 'button', onclick: () => dialog.close() }, TEXTS.close)
    const answer = async (decision) => {
      try {
        await this.client.request('POST', `/api/approvals/${turn}`, { actions: [decision] })
      } catch (error) {
        // Another person answered first, or the turn has ended.
        if (error.status !== 409 && error.status !== 404) return error.message
      }
      dialog.close()
      await this.#read()
      return null
    }
    const dialog = h(
      'dialog',
      { class: 'question', 'aria-label': texts.dialog(name, owner) },
      h('h2', { dir: 'auto' }, texts.dialog(name, owner)),
      h('p', { class: 'hint', dir: 'auto' }, texts.inChat(title || texts.untitled)),
      askForm({ ...call, input: parsed(input) }, input, answer),
      h('footer', {}, close),
    )
    dialog.addEventListener('close', () => dialog.remove())
    document.body.append(dialog)
    dialog.showModal()
  }
}

function item({ chat, title, turn, name, input, since }) {
  const link = h(
    'a',
    { href: `#${chat}/${turn}`, title: input ?? '' },
    h('strong', {}, name),
    h('span', { dir: 'auto' }, texts.place(title || texts.untitled, ageOf(since))),
  )
  return h('li', {}, link)
}

const otherItem = ({ owner, name, input, since }, onclick) =>
  h(
    'li',
    {},
    h(
      'button',
      { type: 'button', class: 'other', title: input, onclick },
      h('strong', {}, name),
      h('span', { dir: 'auto' }, texts.of(owner, ageOf(since))),
    ),
  )

/** Parses the input of a call. Returns null if the model wrote no valid JSON. */
function parsed(input) {
  try {
    return JSON.parse(input)
  } catch {
    return null
  }
}

function ageOf(since) {
  const minutes = Math.max(0, Math.floor((Date.now() - Date.parse(since)) / 60_000))
  if (minutes < 1) return texts.now
  if (minutes < 60) return texts.minutes(minutes)
  return minutes < 60 * 24 ? texts.hours(Math.floor(minutes / 60)) : texts.days(Math.floor(minutes / 60 / 24))
}
