// The turns of the open chat, drawn as often as the page can bear and no oftener.

import { find, h } from './dom.js'
import { TurnView } from './turn.js'

const SHORTEST = 30 // milliseconds between two drawings
const SHARE = 5 // a drawing that took a millisecond is followed by so many without one

export class Transcript {
  constructor(conversation, acts) {
    this.conversation = conversation
    this.acts = acts
    this.scroller = find('#transcript')
    this.turns = find('#turns')
    this.older = find('#older')
    this.down = find('#down')
    this.views = new Map()
    this.changed = new Set()
    this.sticks = true
    this.rest = 0
    this.scroller.addEventListener('scroll', () => this.#scrolled(), { passive: true })
    this.down.addEventListener('click', () => this.toEnd())
    this.older.addEventListener('click', () => this.#readOlder())
    conversation.on('path', () => this.#show())
    conversation.on('turn', (turn, event) => this.#change(turn, event))
  }

  toEnd() {
    this.sticks = true
    this.scroller.scrollTop = this.scroller.scrollHeight
  }

  /** Goes to a turn of the path, however far back it is. */
  async reach(turn) {
    const { conversation } = this
    this.sticks = false
    while (conversation.through === turn && conversation.older && !this.views.has(turn)) await conversation.readOlder()
    this.views.get(turn)?.element.scrollIntoView()
  }

  view(turn) {
    return this.views.get(turn.id)
  }

  #show() {
    const { path, older } = this.conversation
    const shown = new Set(path.map((turn) => turn.id))
    for (const [id, view] of this.views) {
      if (shown.has(id)) continue
      view.forget()
      this.views.delete(id)
    }
    for (const [place, turn] of path.entries()) this.#place(turn, place)
    this.older.hidden = !older
    find('#welcome').hidden = path.length > 0
    if (this.sticks) this.toEnd()
  }

  #place(turn, place) {
    if (!this.views.has(turn.id)) this.views.set(turn.id, new TurnView(turn, this.acts))
    const view = this.views.get(turn.id)
    if (this.turns.children[place] !== view.element)
      this.turns.insertBefore(view.element, this.turns.children[place] ?? null)
    view.update(turn)
  }

  #change(turn, event) {
    const view = this.views.get(turn.id)
    if (!view) return
    if (event && !event.id) view.notice(event)
    this.changed.add(turn)
    this.#plan()
  }

  #plan() {
    if (this.planned) return
    this.planned = true
    setTimeout(() => requestAnimationFrame(() => this.#draw()), this.rest)
  }

  #draw() {
    const began = performance.now()
    this.planned = false
    for (const turn of this.changed) this.views.get(turn.id)?.update(turn)
    this.changed.clear()
    if (this.sticks) this.toEnd() // lays the page out, so that its cost is counted too
    this.rest = Math.max(SHORTEST, SHARE * (performance.now() - began))
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller
    this.sticks = scrollHeight - scrollTop - clientHeight < 60
    this.down.hidden = this.sticks
  }

  async #readOlder() {
    const { scrollHeight, scrollTop } = this.scroller
    this.sticks = false
    await this.conversation.readOlder()
    this.scroller.scrollTop = scrollTop + this.scroller.scrollHeight - scrollHeight
  }
}

/** Told once to those who listen to the page: that an answer began, ended, or waits. Never its words as they come. */
export function announce(text) {
  const region = find('#announcements')
  region.replaceChildren(h('p', {}, text))
}
