// The account of the owner: credentials and remembered approvals, which the owner can revoke, the audit trail, and the
// request to erase everything.

import { asked, attempts, confirmed, h, iconButton } from './dom.js'
import { serversButton } from './servers.js'
import { forgetCopies } from './session.js'
import { TEXTS } from './texts.js'

const { account: texts } = TEXTS
const PAGE = 20 // entries of the audit trail

export async function showOwnAccount(client) {
  const [account, { credentials }, { grants }, page] = await Promise.all([
    client.request('GET', '/api/account'),
    client.request('GET', '/api/account/credentials'),
    client.request('GET', '/api/account/grants'),
    client.request('GET', `/api/account/audit?limit=${PAGE}`),
  ])
  const { trouble, attempt } = attempts()
  const revocable = (name, about, path) => {
    const revoke = () =>
      attempt(async () => {
        await client.request('DELETE', path)
        item.remove()
      })
    const words = h('div', {}, h('bdi', {}, name), h('p', { class: 'hint' }, about.filter(Boolean).join(' · ')))
    const item = h('li', { class: 'row' }, words, path && iconButton('bin', texts.revoke(name), revoke))
    return item
  }
  // The page must not revoke the credential that it uses itself.
  const credentialItem = (credential) => {
    const path = credential.current ? null : `/api/account/credentials/${credential.id}`
    return revocable(credential.name ?? texts.kinds[credential.kind], aboutCredential(credential), path)
  }
  const grantItem = ({ id, chat, tool, title, created_at }) =>
    revocable(tool, [title ?? TEXTS.chats.untitled, dayOf(created_at)], `/api/chats/${chat}/grants/${id}`)
  await asked(
    texts.title,
    h('p', { class: 'hint' }, texts.has(account)),
    section(texts.credentials, credentials.map(credentialItem)),
    section(texts.grants, grants.map(grantItem)),
    await serversButton(client),
    erasure(client, account, attempt),
    trouble,
    trail(client, page, attempt),
    h('footer', {}, h('button', { value: '' }, TEXTS.close)),
  )
}

const dayOf = (time) => new Date(time).toLocaleDateString()

const section = (title, items, ...more) =>
  h(
    'section',
    { 'aria-label': title },
    h('h3', {}, title),
    items.length ? h('ul', { class: 'links' }, items) : h('p', { class: 'hint' }, texts.none),
    ...more,
  )

function aboutCredential({ kind, name, scopes, expires_at, last_used_at, current }) {
  return [
    current && texts.current,
    name !== null && texts.kinds[kind],
    scopes.join(', '),
    last_used_at && texts.used(dayOf(last_used_at)),
    expires_at && texts.until(dayOf(expires_at)),
  ]
}

function entryItem({ created_at, kind, actor }) {
  const about = [new Date(created_at).toLocaleString(), actor].filter(Boolean).join(' · ')
  return h('li', { class: 'row' }, h('div', {}, h('code', {}, kind), h('p', { class: 'hint' }, about)))
}

function trail(client, page, attempt) {
  let { next } = page
  const more = h('button', { type: 'button', class: 'more' }, texts.older)
  more.hidden = next === null
  more.addEventListener('click', () =>
    attempt(async () => {
      const older = await client.request('GET', `/api/account/audit?limit=${PAGE}&before=${next}`)
      element.querySelector('ul').append(...older.entries.map(entryItem))
      next = older.next
      more.hidden = next === null
    }),
  )
  const element = section(texts.trail, page.entries.map(entryItem), more)
  return element
}

/** Requests the erasure of everything, or withdraws this request. */
function erasure(client, { owner, erasure_due_at }, attempt) {
  const about = h('p', { class: 'hint' })
  const button = h('button', { type: 'button', class: 'danger' })
  let due = erasure_due_at
  const show = () => {
    about.textContent = due ? texts.due(new Date(due).toLocaleString()) : ''
    button.textContent = due ? texts.undo : texts.erase
  }
  button.addEventListener('click', () =>
    attempt(async () => {
      if (due) await client.request('DELETE', '/api/account/erasure')
      else if (!(await confirmed(texts.eraseQuestion, texts.eraseNote, texts.eraseNow))) return
      if (!due) forgetCopies()
      due = due ? null : (await client.request('POST', '/api/account/erasure', { owner })).due_at
      show()
    }),
  )
  show()
  return h('section', { 'aria-label': texts.erasure }, h('h3', {}, texts.erasure), about, button)
}
