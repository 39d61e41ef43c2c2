// Schedules and triggers: the dialog that makes, pauses, runs and deletes them, with their next and last runs.

import { asked, attempts, confirmed, copy, h, iconButton } from './dom.js'
import { TEXTS } from './texts.js'

const { schedules: texts } = TEXTS
const MINUTE = 60 // seconds
const LOOK = 1000 // milliseconds between two looks at a run that has not ended
const WRITTEN = ['name', 'chat', 'request', 'cron', 'every', 'zone', 'missed', 'grace', 'body', 'per_minute', 'paused']

export async function showSchedules(client, chat) {
  const [{ schedules }, { triggers }] = await Promise.all([
    client.request('GET', '/api/schedules'),
    client.request('GET', '/api/triggers'),
  ])
  const list = h('ul', { class: 'links' })
  const none = h('p', { class: 'hint' }, texts.none)
  const { trouble, attempt: tried } = attempts()
  const attempt = async (work) => {
    await tried(work)
    none.hidden = list.children.length > 0
  }
  const add = (each) => list.append(itemOf(client, each, attempt))
  await attempt(() => [...schedules, ...triggers].forEach(add))
  await asked(
    texts.title,
    h('p', { class: 'hint' }, texts.about),
    list,
    none,
    form(client, chat, attempt, add),
    trouble,
    h('footer', {}, h('button', { value: '' }, TEXTS.close)),
  )
}

/** A schedule, or a trigger, which has a path. It is drawn again after each change. */
function itemOf(client, each, attempt) {
  const path = each.path ? `/api/triggers/${each.id}` : `/api/schedules/${each.id}`
  const change = (work) => () =>
    attempt(async () => {
      await work()
      item.replaceWith(itemOf(client, await client.request('GET', path), attempt))
    })
  const put = (changes) => client.request('PUT', path, { ...written(each), ...changes })
  const remove = () =>
    attempt(async () => {
      if (!(await confirmed(texts.removeQuestion(each.name), texts.removeNote, TEXTS.remove))) return
      await client.request('DELETE', path)
      item.remove()
    })
  const secret = () =>
    attempt(async () => {
      const made = await client.request('POST', `${path}/secrets`, {})
      item.replaceWith(itemOf(client, made, attempt))
    })
  const pause = each.paused
    ? iconButton(
        'again',
        texts.resume(each.name),
        change(() => put({ paused: false })),
      )
    : iconButton(
        'pause',
        texts.pause(each.name),
        change(() => put({ paused: true })),
      )
  const run = iconButton(
    'now',
    texts.run(each.name),
    change(() => client.request('POST', `${path}/run`)),
  )
  const words = h('div', {}, h('bdi', {}, each.name), ...about(each))
  const more = each.path ? iconButton('key', texts.secret(each.name), secret) : run
  const item = h('li', { class: 'row' }, words, pause, more, iconButton('bin', texts.remove(each.name), remove))
  if (['pending', 'started'].includes(each.last_run?.state)) setTimeout(refresh, LOOK)
  return item

  async function refresh() {
    if (!item.isConnected) return
    const focused = item.contains(document.activeElement)
    const now = focused ? each : await client.request('GET', path).catch(() => each)
    if (focused || now === each) setTimeout(refresh, LOOK)
    else item.replaceWith(itemOf(client, { ...now, secret: each.secret }, attempt))
  }
}

const written = (each) => Object.fromEntries(WRITTEN.filter((name) => name in each).map((name) => [name, each[name]]))

function about(each) {
  const rule = each.path ? texts.signed(each.per_minute) : each.cron ? `${each.cron} ${each.zone}` : every(each.every)
  const next = each.paused ? texts.paused[each.paused] : each.path ? null : texts.next(timeOf(each.next_at))
  const lines = [h('p', { class: 'hint' }, [rule, next].filter(Boolean).join(' · '))]
  const last = each.last_run
  if (last) {
    const outcome = texts.last(timeOf(last.tick), texts.states[last.state])
    const link = last.chat ? h('a', { href: `#${last.chat}`, onclick: closeDialog }, outcome) : outcome
    lines.push(h('p', { class: last.state === 'failed' ? 'trouble' : 'hint' }, link, last.error && ` · ${last.error}`))
  }
  if (each.path) lines.push(copied(texts.address, new URL(each.path, location.href).href))
  if (each.secret) lines.push(h('p', { class: 'hint' }, texts.once), copied(texts.secretField, each.secret))
  return lines
}

const closeDialog = ({ target }) => target.closest('dialog').close()

function copied(label, value) {
  const field = h('input', { readonly: true, value, 'aria-label': label })
  field.addEventListener('focus', () => field.select())
  const copying = iconButton('copy', texts.copy(label), () => copy(copying, value))
  return h('div', { class: 'address' }, field, copying)
}

const timeOf = (time) => new Date(time).toLocaleString()
const every = (seconds) => texts.every(Math.round((seconds / MINUTE) * 100) / 100)

function form(client, chat, attempt, add) {
  const kinds = Object.entries(texts.kinds).map(([value, text]) => h('option', { value }, text))
  const kind = h('select', {}, ...kinds)
  const name = h('input', { type: 'text', maxlength: 300, autocomplete: 'off' })
  const words = h('textarea', { rows: 2, dir: 'auto' })
  const minutes = h('input', { type: 'number', min: 1, value: 60 })
  const cron = h('input', { type: 'text', placeholder: '30 7 * * 1-5', autocomplete: 'off', spellcheck: 'false' })
  const zone = h('input', {
    type: 'text',
    value: Intl.DateTimeFormat().resolvedOptions().timeZone,
    spellcheck: 'false',
  })
  const here = h('input', { type: 'checkbox', disabled: !chat })
  const fields = {
    every: [h('label', {}, texts.minutes, minutes)],
    cron: [h('label', {}, texts.cron, cron), h('label', {}, texts.zone, zone)],
    trigger: [],
  }
  const place = h('div', { class: 'pair' })
  const show = () => place.replaceChildren(...fields[kind.value])
  kind.addEventListener('change', show)
  show()
  const create = () =>
    attempt(async () => {
      const rule = {
        every: { every: Number(minutes.value) * MINUTE },
        cron: { cron: cron.value, zone: zone.value },
        trigger: {},
      }[kind.value]
      const request = { blocks: [{ type: 'text', text: words.value }] }
      const body = { name: name.value, request, ...(here.checked && { chat }), ...rule }
      add(await client.request('POST', kind.value === 'trigger' ? '/api/triggers' : '/api/schedules', body))
      name.value = words.value = ''
    })
  return h(
    'section',
    { 'aria-label': texts.new },
    h('h3', {}, texts.new),
    h('label', {}, texts.kind, kind),
    place,
    h('label', {}, texts.name, name),
    h('label', {}, texts.words, words),
    h('label', { class: 'tick' }, here, texts.here),
    h('button', { type: 'button', class: 'primary', onclick: create }, texts.add),
  )
}
