// The calls that wait for the owner, in all chats: how many there are, and for how long they wait.

import { find, h, setText } from './dom.js'
import { TEXTS } from './texts.js'

const { waiting: texts } = TEXTS

const SHOWN = 20
const SOON = 200 // milliseconds in which several events of the feed lead to one request

export class Waiting {
  /** Reads the list anew whenever `chats` fires `waiting`. */
  constructor(client, chats) {
    this.client = client
    this.element = find('#waiting')
    chats.addEventListener('waiting', () => this.#readSoon())
    this.element.addEventListener('toggle', () => this.element.open && this.#read())
  }

  #readSoon() {
    clearTimeout(this.soon)
    this.soon = setTimeout(() => this.#read(), SOON)
  }

  async #read() {
    try {
      this.#draw(await this.client.request('GET', `/api/waiting?limit=${SHOWN}`))
    } catch {
      // The next event of the feed, or the next look at the list, reads it again.
    }
  }

  #draw({ calls, count }) {
    this.element.hidden = !count
    setText(find('#waiting summary'), texts.count(count))
    const more = count > calls.length ? [h('li', { class: 'hint' }, texts.more(count - calls.length))] : []
    find('#waiting ul').replaceChildren(...calls.map(item), ...more)
  }
}

function item({ chat, title, turn, name, input, since }) {
  const link = h(
    'a',
    { href: `#${chat}/${turn}`, title: input },
    h('strong', {}, name),
    h('span', { dir: 'auto' }, texts.place(title || texts.untitled, ageOf(since))),
  )
  return h('li', {}, link)
}

function ageOf(since) {
  const minutes = Math.max(0, Math.floor((Date.now() - Date.parse(since)) / 60_000))
  if (minutes < 1) return texts.now
  if (minutes < 60) return texts.minutes(minutes)
  return minutes < 60 * 24 ? texts.hours(Math.floor(minutes / 60)) : texts.days(Math.floor(minutes / 60 / 24))
}
