// Files that are dropped anywhere on the page.

/**
 * They go to the documents where their panel is open, where a folder is among them, or where the model takes no files;
 * else to the message.
 */
export function listenToDrops(documents, attachments) {
  const toMessage = () => attachments.offered && !documents.dialog.open
  const mark = (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    document.body.dataset.dropping = toMessage() ? 'Into the message' : 'Into the documents'
  }
  const drop = async (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    delete document.body.dataset.dropping
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry() ?? item.getAsFile())
    const found = await Promise.all(entries.filter(Boolean).map((entry) => filesIn(entry)))
    if (toMessage() && !entries.some((entry) => entry?.isDirectory))
      attachments.add(found.flat().map(([, file]) => file))
    else await documents.add(found.flat())
  }
  document.addEventListener('dragover', mark)
  document.addEventListener('dragleave', (event) => event.relatedTarget ?? delete document.body.dataset.dropping)
  document.addEventListener('drop', drop)
}

const hasFiles = (event) => event.dataTransfer.types.includes('Files')

/** Paths and files. */
async function filesIn(entry, folder = '') {
  const path = folder + entry.name
  if (entry instanceof File) return [[path, entry]]
  if (entry.isFile) return [[path, await new Promise((resolve, reject) => entry.file(resolve, reject))]]
  const reader = entry.createReader()
  const files = []
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)) // at most a hundred each time
    if (!some.length) return files
    for (const inner of some) files.push(...(await filesIn(inner, `${path}/`)))
  }
}
