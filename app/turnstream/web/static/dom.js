// Creates and finds elements, without a framework.

import { TEXTS } from './texts.js'

const { questions: texts } = TEXTS
/** Creates an element with attributes, listeners (`onclick`) and children. It never parses HTML. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? '' : value)
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false))
  return element
}

const ICONS = {
  copy: 'M9 9h10v10H9zM5 15V5h10',
  edit: 'M4 20l1-4L16 5l3 3L8 19zM14 7l3 3',
  again: 'M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5',
  clock: 'M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16M12 8v4l3 2',
  left: 'M14 6l-6 6 6 6',
  right: 'M10 6l6 6-6 6',
  up: 'M12 19V5M6 11l6-6 6 6',
  down: 'M12 5v14M6 13l6 6 6-6',
  now: 'M4 5v6a5 5 0 0 0 5 5h11M15 11l5 5-5 5',
  bin: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  pause: 'M9 6v12M15 6v12',
  stop: 'M7 7h10v10H7z',
  check: 'M5 12l5 5 9-10',
  cross: 'M6 6l12 12M18 6L6 18',
  hand: 'M12 8v5M12 16.5v.5M12 3l10 18H2z',
  folder: 'M3 6h6l2 2h10v11H3z',
  file: 'M6 3h8l4 4v14H6zM14 3v4h4',
  wrap: 'M4 6h16M4 12h13a3 3 0 0 1 0 6h-4M15 15l-3 3 3 3M4 18h4',
  key: 'M8 15a4 4 0 1 1 3-3l9-9M16 7l3 3M11 12l-2 2',
  more: 'M5 12h.01M12 12h.01M19 12h.01',
}

export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg')
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path')
  path.setAttribute('d', ICONS[name])
  svg.setAttribute('viewBox', '0 0 24 24')
  svg.setAttribute('class', 'icon')
  svg.setAttribute('aria-hidden', 'true')
  svg.append(path)
  return svg
}

/** A button with an icon. `label` is its name for screen readers and its tooltip. */
export function iconButton(name, label, onclick, more = {}) {
  return h(
    'button',
    { type: 'button', class: 'quiet', 'aria-label': label, title: label, onclick, ...more },
    icon(name),
  )
}

/**
 * Creates a menu behind an icon. Each of the `entries` has a label, the function for its choice, and other attributes
 * of its button. The menu closes when the focus leaves it.
 */
export function menu(label, entries) {
  const choose = (action) => () => {
    element.open = false
    action()
  }
  const buttons = entries.map(([name, action, more]) =>
    h('button', { type: 'button', onclick: choose(action), ...more }, name),
  )
  const summary = h('summary', { class: 'quiet', 'aria-label': label, title: label }, icon('more'))
  const element = h('details', { class: 'menu' }, summary, h('div', {}, buttons))
  element.addEventListener('focusout', ({ relatedTarget }) => {
    if (!element.contains(relatedTarget)) element.open = false
  })
  element.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !element.open) return
    event.stopPropagation()
    element.open = false
    summary.focus()
  })
  return element
}

export const find = (selector, within = document) => within.querySelector(selector)
export const findAll = (selector, within = document) => within.querySelectorAll(selector)

/** Whether the person writes with a touch keyboard, which has no Shift + Enter. */
export const touches = () => matchMedia('(pointer: coarse)').matches

/** Whether a key sends the written text: Enter if Shift + Enter can begin a line, or else Enter with Ctrl or Cmd. */
export function sends(event) {
  if (event.key !== 'Enter' || event.isComposing) return false
  return event.ctrlKey || event.metaKey || (!event.shiftKey && !touches())
}

/** Sets the text only if it differs, so that an unchanged element causes no layout and no announcement. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text
}

export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }))
  h('a', { href: url, download: name }).click()
  setTimeout(() => URL.revokeObjectURL(url), 10_000)
}

/** Copies `text`, and shows a tick on the button for a moment. */
export async function copy(button, text) {
  await navigator.clipboard.writeText(text)
  button.replaceChildren(icon('check'))
  setTimeout(() => button.replaceChildren(icon('copy')), 1500)
}

/** Returns a line for errors in a dialog, and a function that runs an action and shows its error in this line. */
export function attempts() {
  const trouble = h('p', { class: 'trouble', role: 'alert' })
  const attempt = async (work) => {
    setText(trouble, '')
    try {
      await work()
    } catch (error) {
      setText(trouble, error.message)
    }
  }
  return { trouble, attempt }
}

/** Asks in a dialog. Resolves to the value of the pressed button, or to '' if no button was pressed. */
export function asked(question, ...content) {
  const form = h('form', { method: 'dialog' }, h('h2', { id: 'question' }, question), ...content)
  const dialog = h('dialog', { class: 'question', 'aria-labelledby': 'question' }, form)
  document.body.append(dialog)
  dialog.showModal()
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => {
      dialog.remove()
      resolve(dialog.returnValue)
    })
  })
}

/** Asks the person to confirm an action that cannot be undone. */
export async function confirmed(question, consequence, action) {
  const buttons = [h('button', { value: '' }, texts.keep), h('button', { value: 'yes', class: 'danger' }, action)]
  return (await asked(question, h('p', {}, consequence), h('footer', {}, buttons))) === 'yes'
}
