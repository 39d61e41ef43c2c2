// Notifications of the system: an answer has ended, or waits for the person, while no tab shows the page.

import { find } from './dom.js'
import { TEXTS } from './texts.js'

const KEY = 'turnstream.notifications'
const { notifications: texts } = TEXTS

/** Whether the person has asked for notifications in this browser, and the browser allows them. */
export const notifies = () => localStorage.getItem(KEY) === 'on' && globalThis.Notification?.permission === 'granted'

export class Notifications {
  /** `report` is called with the reason if notifications cannot be switched on. */
  constructor(chats, report) {
    this.report = report
    this.button = find('#notify')
    this.button.hidden = !globalThis.Notification
    this.button.addEventListener('click', () => this.#toggle())
    chats.addEventListener('news', (event) => this.#show(event.detail))
    this.#label()
  }

  async #toggle() {
    const on = !notifies()
    const permission = on ? await Notification.requestPermission() : ''
    localStorage.setItem(KEY, permission === 'granted' ? 'on' : 'off')
    if (on && !notifies()) this.report(texts.refused)
    this.#label()
  }

  #label() {
    const label = notifies() ? texts.on : texts.off
    this.button.title = label
    this.button.setAttribute('aria-label', label)
    this.button.setAttribute('aria-pressed', String(notifies()))
  }

  /** Shows a notification. Its tag prevents several tabs from showing the same notification twice. */
  #show({ chat, title, turn, state }) {
    if (!document.hidden || !notifies()) return
    try {
      const note = new Notification(title, { body: texts[state], tag: `${turn} ${state}` })
      note.addEventListener('click', () => {
        window.focus()
        location.hash = chat
        note.close()
      })
    } catch {
      // Chromium on a phone shows only notifications from service workers.
    }
  }
}
