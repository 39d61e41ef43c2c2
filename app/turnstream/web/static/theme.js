// Sets the theme, and whether the list is folded, before the first paint: a later script would show a flash of the other.
document.documentElement.dataset.theme = localStorage.getItem('turnstream.theme') ?? 'auto'
document.documentElement.dataset.list = localStorage.getItem('turnstream.list') ?? 'open'
