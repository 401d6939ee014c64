"""An error in the table: the message names the entry and the column."""


class TableError(Exception):
    pass
